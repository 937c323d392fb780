/**
 * Charts: a line without axes next to a figure, and a chart of several lines over time with its scale.
 *
 * @module
 */

import { element, say } from "/ui/elements.js"
import { time } from "/ui/numbers.js"

export const POINTS = 60
const WIDTH = 120
const HEIGHT = 24
const NAMESPACE = "http://www.w3.org/2000/svg"
/** Rows of the table that screen readers read in place of a chart, and how often it changes. */
const READ_ROWS = 10
const READ_EVERY_MS = 30_000

/** @returns {SVGElement} */
export function makeChart() {
  const chart = svg("svg", { class: "chart", "aria-hidden": "true" })
  chart.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`)
  chart.setAttribute("preserveAspectRatio", "none")
  chart.append(svg("path", { class: "area" }), svg("path", { class: "line" }))
  return chart
}

/** The newest is on the right. @param {SVGElement} chart @param {number[]} values */
export function draw(chart, values) {
  const most = Math.max(...values, 1)
  const step = WIDTH / (POINTS - 1)
  const left = WIDTH - (values.length - 1) * step
  const points = values.map((value, i) => `${round(left + i * step)},${round(HEIGHT - 1 - (value / most) * (HEIGHT - 2))}`)
  const [area, line] = chart.children
  line.setAttribute("d", `M${points.join("L")}`)
  area.setAttribute("d", `M${round(left)},${HEIGHT}L${points.join("L")}L${WIDTH},${HEIGHT}Z`)
}

/** A chart of rates over time: lines with their names and latest values, the scale, and a table of the same. */
export class TimeChart {
  #lines
  #format
  #drawing
  #paths
  #top = element("span", { class: "scale" })
  #from = element("span")
  #latest
  #rows = element("tbody")
  #readAt = 0

  /** @param {string} title @param {{name: string, label: string}[]} lines @param {(value: number) => string} format */
  constructor(title, lines, format) {
    this.#lines = lines
    this.#format = format
    this.#drawing = svg("svg", { class: "chart", role: "img", "aria-label": `${title}, a chart; the table has its values` })
    this.#drawing.setAttribute("preserveAspectRatio", "none")
    this.#paths = lines.map((_, i) => svg("path", { class: `line line-${i}` }))
    this.#drawing.append(svg("path", { class: "area" }), ...this.#paths)
    this.#latest = lines.map(() => element("b"))
    const legend = lines.map(({ label }, i) => element("span", { class: `key key-${i}` }, this.#latest[i], ` ${label}`))
    const heads = ["Time", ...lines.map(({ label }) => label)].map((each) => element("th", { scope: "col" }, each))
    const read = element("table", { "aria-label": title }, element("thead", {}, element("tr", {}, ...heads)), this.#rows)
    const axis = element("p", { class: "axis", "aria-hidden": "true" }, this.#from, element("span", {}, "now"))
    this.element = element(
      "figure",
      { class: "time-chart" },
      element("figcaption", {}, element("span", { class: "quiet" }, title), ...legend),
      element("div", { class: "drawing" }, this.#top, this.#drawing),
      axis,
      element("div", { class: "unseen" }, read),
    )
  }

  /** @param {any[]} points oldest first, each with `at` and a number for each line; null: none @param {number} seconds in view */
  show(points, seconds) {
    const end = points.at(-1)?.at ?? Date.now() * 1000
    const begin = end - seconds * 1e6
    const visible = points.filter(({ at }) => at >= begin)
    const most = Math.max(1, ...visible.flatMap((point) => this.#lines.map(({ name }) => point[name] ?? 0)))
    this.#drawing.setAttribute("viewBox", "0 0 1000 100")
    const place = (point, member) => `${round(((point.at - begin) / (end - begin)) * 1000)},${round(98 - ((point[member] ?? 0) / most) * 94)}`
    this.#lines.forEach(({ name }, i) => this.#paths[i].setAttribute("d", visible.length ? `M${visible.map((each) => place(each, name)).join("L")}` : ""))
    const [first] = visible
    const area = first ? `M${place({ ...first, [this.#lines[0].name]: 0 }, this.#lines[0].name)}L${visible.map((each) => place(each, this.#lines[0].name)).join("L")}L1000,98Z` : ""
    this.#drawing.firstChild.setAttribute("d", area)
    say(this.#top, this.#format(most))
    say(this.#from, time(begin))
    this.#lines.forEach(({ name }, i) => say(this.#latest[i], this.#format(points.at(-1)?.[name] ?? 0)))
    this.#read(visible)
  }

  /** The table changes rarely: a screen reader that is in it should not be interrupted every second. */
  #read(points) {
    if (Date.now() - this.#readAt < READ_EVERY_MS && this.#rows.children.length) return
    this.#readAt = Date.now()
    const every = Math.max(Math.ceil(points.length / READ_ROWS), 1)
    const chosen = points.filter((_, i) => (points.length - 1 - i) % every === 0)
    const rows = chosen.map((point) => {
      const cells = this.#lines.map(({ name }) => element("td", {}, this.#format(point[name] ?? 0)))
      return element("tr", {}, element("th", { scope: "row" }, time(point.at)), ...cells)
    })
    this.#rows.replaceChildren(...rows)
  }
}

function svg(tag, attributes) {
  const made = document.createElementNS(NAMESPACE, tag)
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value)
  return made
}

function round(value) {
  return value.toFixed(1)
}

/** Rates by name, for as long as they are drawn. */
export class History {
  /** @type {Map<string, number[]>} */
  #values = new Map()

  /** @param {Map<string, number>} rates those that are not in it are removed */
  add(rates) {
    for (const name of this.#values.keys()) if (!rates.has(name)) this.#values.delete(name)
    for (const [name, value] of rates) {
      const values = this.#values.get(name) ?? []
      values.push(value)
      if (values.length > POINTS) values.shift()
      this.#values.set(name, values)
    }
  }

  /** @param {string} name */
  of(name) {
    return this.#values.get(name) ?? []
  }

  clear() {
    this.#values.clear()
  }
}
