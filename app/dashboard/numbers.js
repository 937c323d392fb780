/**
 * Numbers and times in readable form.
 *
 * @module
 */

const exactly = new Intl.NumberFormat("en", { maximumFractionDigits: 0 })
const roughly = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 })
const small = new Intl.NumberFormat("en", { maximumFractionDigits: 1 })
const SHORT = 100_000
const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"]

/** Without abbreviation. @param {number} value */
export function exact(value) {
  return exactly.format(value)
}

/** @param {number} value */
export function count(value) {
  return value < SHORT ? exactly.format(value) : roughly.format(value)
}

/** @param {number} value a second */
export function rate(value) {
  return value < 10 ? small.format(value) : count(value)
}

/** @param {number} value */
export function bytes(value) {
  let unit = 0
  while (value >= 1000 && unit < UNITS.length - 1) [value, unit] = [value / 1000, unit + 1]
  return `${unit && value < 100 ? value.toPrecision(value < 10 ? 2 : 3) : Math.round(value)} ${UNITS[unit]}`
}

/** @param {number} many @param {string} one such as `message` */
export function plural(many, one) {
  return `${count(many)} ${one}${many === 1 ? "" : "s"}`
}

/** How long ago something was. @param {number} us */
export function age(us) {
  const seconds = Math.max(Math.round(us / 1e6), 0)
  if (seconds < 120) return `${seconds} s ago`
  if (seconds < 7200) return `${Math.round(seconds / 60)} min ago`
  return `${plural(Math.round(seconds / 3600), "hour")} ago`
}

/** @param {number} us since 1970 */
export function time(us) {
  return new Date(us / 1000).toLocaleTimeString("en-GB")
}

/** @param {number} us since 1970 @param {boolean} [withDay] also today */
export function preciseTime(us, withDay = false) {
  const date = new Date(us / 1000)
  const isToday = date.toDateString() === new Date().toDateString()
  const milliseconds = String(date.getMilliseconds()).padStart(3, "0")
  const day = isToday && !withDay ? "" : `${date.toLocaleDateString("en-CA")} `
  return `${day}${date.toLocaleTimeString("en-GB")}.${milliseconds}`
}

/** A day and a time. @param {number} us since 1970 */
export function dayAndTime(us) {
  const date = new Date(us / 1000)
  return `${date.toLocaleDateString("en-CA")} ${date.toLocaleTimeString("en-GB")}`
}
