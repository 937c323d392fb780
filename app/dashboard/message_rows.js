/**
 * Messages as a table with one line for each; a line opens in place. Rows are made when they are shown, and their
 * details when they are opened.
 *
 * @module
 */

import { button, copyable, element, name, say } from "/ui/elements.js"
import { bytes, count, exact, plural, preciseTime } from "/ui/numbers.js"
import { headerText, oneLine, shown } from "/ui/payload.js"
import { hrefOf } from "/ui/router.js"
import { curlOf } from "/ui/snippets.js"
import { bytesOf } from "/ui/whippet.js"

const SHOWN_BYTES = 4096
const PREVIEW_BYTES = 400
/** Of payloads, in base64. */
const KEPT_LETTERS_MAX = 16 << 20
/** Messages of a gap that are fetched at once. */
const OPENED_AT_ONCE = 100
const PATH = /^\$((?:\.[\w-]+|\[\d+\])*)$/
/** As in the style sheet. */
const narrow = matchMedia("(max-width: 639px)")
const medium = matchMedia("(max-width: 999px)")

/** @typedef {{partition: number, from: number, to: number}} Range of offsets, both included */

export class MessageRows {
  #columns = []
  #form = "auto"
  #body = element("tbody")
  #head = element("tr")
  /** @type {Map<any, any>} */
  #messages = new Map()
  #place
  #client
  /** Rows that are open. */
  #open = new Set()
  onOpen = () => {}
  #leaving = new AbortController()

  /** @param {import("/ui/whippet.js").Client} client @param {{stream: string, topic: string}} place */
  constructor(client, place) {
    this.#client = client
    this.#place = place
    this.element = element("table", { class: "messages", "aria-label": "Messages" }, element("thead", {}, this.#head), this.#body)
    this.element.id = "messages"
    this.#body.addEventListener("keydown", (event) => this.#step(event))
    for (const width of [narrow, medium]) width.addEventListener("change", () => this.#spanAgain(), { signal: this.#leaving.signal })
    this.#showHead()
  }

  /** The messages that are listed, in the order of the rows. */
  get listed() {
    return [...this.#body.children].map((row) => this.#messages.get(row)).filter(Boolean)
  }

  get hasOpen() {
    return this.#open.size > 0
  }

  /** @param {string} text paths such as `$.order, $.customer.id` */
  set columns(text) {
    this.#columns = text.split(",").map((each) => each.trim()).filter((each) => PATH.test(each))
    this.#showHead()
    this.#showAgain()
    this.#spanAgain()
  }

  set form(form) {
    this.#form = form
    this.#showAgain()
  }

  clear() {
    this.#body.replaceChildren()
    this.#messages.clear()
    this.#open.clear()
  }

  /** @param {any[]} messages in the order of the rows */
  append(messages) {
    this.#body.append(...messages.map((each) => this.#row(each)))
  }

  /** Puts a message, or a gap before it, at the top. @param {any} message @param {Range[]} [gap] messages before it that are not listed */
  prepend(message, gap = []) {
    if (gap.length) this.#body.prepend(this.#gap(gap))
    this.#body.prepend(this.#row(message))
  }

  /** Removes the last rows beyond a number, or beyond a size of their payloads, but nothing above an open one. */
  trim(most) {
    let letters = 0
    for (const { payload } of this.#messages.values()) letters += payload.length
    while (this.#body.children.length > 1 && (this.#body.children.length > most || letters > KEPT_LETTERS_MAX)) {
      const last = this.#body.lastChild
      if (this.#open.has(last) || this.#open.has(last.previousSibling)) return
      letters -= this.#messages.get(last)?.payload.length ?? 0
      this.#messages.delete(last)
      last.remove()
    }
  }

  /** Opens the row of a message, and moves the focus to it. */
  open(partition, offset) {
    for (const [row, { partition_id: found, header }] of this.#messages) {
      if (found !== partition || header.offset !== offset) continue
      if (!this.#open.has(row)) this.#toggle(row)
      row.classList.add("named")
      row.scrollIntoView({ block: "center" })
      return true
    }
    return false
  }

  leave() {
    this.#leaving.abort()
  }

  // ------------------------------------------------------------------------------------------------------------ rows

  #showHead() {
    const texts = [["Offset", ""], ["Time", "wide"], ["Headers", "wider"], ...this.#columns.map((each) => [each, ""]), ["Payload", "payload"], ["Size", "number wide"]]
    this.#head.replaceChildren(...texts.map(([text, kind]) => element("th", { scope: "col", class: kind }, text)))
  }

  /** How many columns are visible: a cell that spans more would take room from them. */
  #span() {
    const isHidden = ({ classList }) => (narrow.matches && classList.contains("wide")) || (medium.matches && classList.contains("wider"))
    return String([...this.#head.children].filter((each) => !isHidden(each)).length)
  }

  #spanAgain() {
    for (const cell of this.#body.querySelectorAll("td[colspan]")) cell.setAttribute("colspan", this.#span())
  }

  #showAgain() {
    for (const row of [...this.#open]) this.#toggle(row)
    for (const [row, message] of this.#messages) row.replaceChildren(...this.#cells(row, message))
  }

  #row(message) {
    const row = element("tr", { class: "message" })
    this.#messages.set(row, message)
    row.append(...this.#cells(row, message))
    row.addEventListener("click", (event) => {
      if (!event.target.closest("button, a") && !String(getSelection())) this.#toggle(row)
    })
    return row
  }

  #cells(row, message) {
    const { partition_id: partition, header, payload, user_headers: headers } = message
    const octets = bytesOf(payload)
    const opener = button(exact(header.offset), () => this.#toggle(row), "opener")
    opener.setAttribute("aria-expanded", "false")
    opener.setAttribute("aria-label", `offset ${header.offset}, partition ${partition}`)
    const value = this.#columns.length ? valueOf(octets) : undefined
    const cell = (kind, ...children) => element("td", { class: kind }, ...children)
    return [
      cell("offset", opener, element("span", { class: "quiet" }, ` p${partition}`)),
      cell("at wide", preciseTime(header.timestamp)),
      cell("wider chips", ...chips(headers)),
      ...this.#columns.map((path) => cell("value", name(textAt(value, path)))),
      cell("payload", name(oneLine(octets.subarray(0, PREVIEW_BYTES), this.#form))),
      cell("number wide", bytes(header.payload_length)),
    ]
  }

  #toggle(row) {
    const opener = row.querySelector(".opener")
    if (this.#open.delete(row)) row.nextSibling.remove()
    else {
      this.#open.add(row)
      row.after(element("tr", { class: "detail" }, element("td", { colspan: this.#span() }, ...this.#detail(this.#messages.get(row)))))
    }
    opener.setAttribute("aria-expanded", String(this.#open.has(row)))
    row.classList.toggle("open", this.#open.has(row))
    this.onOpen()
  }

  // ---------------------------------------------------------------------------------------------------------- details

  #detail(message) {
    const { partition_id: partition, header, payload, user_headers: headers } = message
    const { stream, topic } = this.#place
    const about = element("dl", { class: "about" })
    const facts = [
      ["Partition", String(partition)],
      ["Offset", exact(header.offset)],
      ["Appended", preciseTime(header.timestamp, true)],
      ["Sent", preciseTime(header.origin_timestamp, true)],
      ["Id", String(header.id)],
      ["Size", plural(header.payload_length, "byte")],
    ]
    about.append(...facts.map(([term, text]) => element("div", {}, element("dt", {}, term), element("dd", {}, text))))
    const to = (query) => hrefOf(["streams", stream, topic, "messages"], { partition, ...query })
    const around = element("a", { href: to({ from: "offset", at: Math.max(header.offset - 10, 0), open: header.offset }) }, "Show in context")
    const readers = button("Who has read it?", () => this.#showReaders(message, readers), "link")
    const curl = button("As curl", () => curl.replaceWith(copyable("Get this message", curlOf(stream, topic, partition, header.offset))), "link")
    const links = element("p", { class: "links" }, around, readers, curl)
    return [about, ...headersOf(headers), ...this.#payloadOf(bytesOf(payload)), links]
  }

  #payloadOf(octets) {
    if (!octets.length) return [element("p", { class: "quiet" }, "no payload")]
    const box = element("pre", { tabindex: "0", "aria-label": "Payload" })
    const fill = (part) => {
      const { form, nodes } = shown(part, /** @type {any} */ (this.#form), narrow.matches ? 8 : 16)
      box.className = form
      box.replaceChildren(...nodes)
    }
    if (octets.length <= SHOWN_BYTES) {
      fill(octets)
      return [box]
    }
    const text = cut(octets, SHOWN_BYTES)
    fill(text)
    const left = octets.length - text.length
    const more = button(`Show the remaining ${left < 1000 ? `${count(left)} bytes` : bytes(left)}`, () => (fill(octets), more.remove(), box.focus()), "link")
    return [box, more]
  }

  async #showReaders(message, press) {
    const box = element("div", { class: "readers", role: "status" }, "Loading.")
    press.replaceWith(box)
    try {
      const readers = await this.#client.call("get_topic_readers", this.#place)
      box.replaceChildren(...readersOf(message, readers))
    } catch (error) {
      say(box, error.message)
    }
  }

  // ------------------------------------------------------------------------------------------------------------- gaps

  /** @param {Range[]} ranges */
  #gap(ranges) {
    const missing = ranges.reduce((sum, { from, to }) => sum + to - from + 1, 0)
    const row = element("tr", { class: "gap" })
    const which = missing > OPENED_AT_ONCE ? `the last ${OPENED_AT_ONCE}` : missing > 1 ? "them" : "it"
    const press = button(`${plural(missing, "message")} not shown: show ${which}`, () => this.#fill(row, ranges, press), "link")
    row.append(element("td", { colspan: this.#span() }, press))
    return row
  }

  async #fill(row, ranges, press) {
    press.disabled = true
    try {
      const { messages, left } = await this.#fetch(ranges)
      if (!row.isConnected) return
      const rows = messages.map((each) => this.#row(each))
      row.replaceWith(...rows, ...(left.length ? [this.#gap(left)] : []))
      rows[0]?.querySelector(".opener").focus({ preventScroll: true })
    } catch (error) {
      say(press, `The messages cannot be shown: ${error.message}`)
    }
  }

  /** Returns the newest messages of the ranges, newest first, and the ranges of the others. @param {Range[]} ranges */
  async #fetch(ranges) {
    const found = []
    const left = []
    const each = Math.max(Math.floor(OPENED_AT_ONCE / ranges.length), 1)
    for (const { partition, from, to } of ranges) {
      const start = Math.max(from, to - each + 1)
      const polled = await this.#client.call("poll_messages", { ...this.#place, partition_id: partition, kind: "offset", value: start, count: to - start + 1 })
      const fitting = polled.messages.filter(({ header }) => header.offset <= to)
      found.push(...fitting.map((message) => ({ ...message, partition_id: partition })))
      if (start > from) left.push({ partition, from, to: start - 1 })
    }
    return { messages: found.sort(newestFirst), left }
  }

  // --------------------------------------------------------------------------------------------------------- keyboard

  /** @param {KeyboardEvent} event */
  #step(event) {
    const steps = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }
    const row = /** @type {any} */ (event.target).closest("tr")
    if (!(event.key in steps) || /** @type {any} */ (event.target).closest("pre")) return
    let next = row[steps[event.key]]
    while (next && !next.querySelector(".opener, .gap button")) next = next[steps[event.key]]
    next?.querySelector(".opener, button").focus()
    if (next) event.preventDefault()
  }
}

export function newestFirst(a, b) {
  return b.header.timestamp - a.header.timestamp || b.partition_id - a.partition_id || b.header.offset - a.header.offset
}

/** Messages as lines of JSON: payloads that are no text are in base64. @param {any[]} messages */
export function ndjsonOf(messages) {
  const text = new TextDecoder("utf-8", { fatal: true })
  const lines = messages.map(({ partition_id, header, payload, user_headers }) => {
    const { id, offset, timestamp } = header
    const headers = Array.isArray(user_headers) ? Object.fromEntries(user_headers.map(({ key, value }) => [headerText(key), headerText(value)])) : user_headers
    try {
      return { partition_id, offset, timestamp, id, headers, payload: text.decode(bytesOf(payload)) }
    } catch {
      return { partition_id, offset, timestamp, id, headers, payload_base64: payload }
    }
  })
  return lines.map((each) => `${JSON.stringify(each)}\n`).join("")
}

function chips(headers) {
  if (typeof headers === "string") return ["encrypted"]
  return headers.slice(0, 3).map(({ key, value }) => element("span", { class: "chip" }, name(headerText(key)), " ", name(headerText(value))))
}

function headersOf(headers) {
  if (!headers.length) return []
  if (typeof headers === "string") return [element("p", { class: "quiet" }, "encrypted user headers")]
  const list = element("dl", { class: "headers" })
  for (const { key, value } of headers) {
    list.append(element("div", {}, element("dt", {}, name(headerText(key))), element("dd", {}, name(headerText(value)))))
  }
  return [list]
}

function readersOf({ partition_id: partition, header }, readers) {
  const here = readers.filter((each) => each.partition_id === partition)
  if (!here.length) return [element("p", { class: "quiet" }, "No group or consumer has committed an offset in this partition.")]
  const items = here.map(({ kind, name: reader, stored_offset: stored }) => {
    const has = stored !== null && stored >= header.offset
    const distance = stored === null ? "has committed nothing yet" : has ? `has read it (committed ${exact(stored)})` : `has not read it: ${plural(header.offset - stored, "message")} to go`
    return element("li", { class: has ? "has" : "has-not" }, `${kind === "group" ? "Group" : "Consumer"} `, name(reader), ` ${distance}`)
  })
  return [element("ul", {}, ...items)]
}

function valueOf(octets) {
  try {
    return JSON.parse(new TextDecoder().decode(octets))
  } catch {
    return undefined
  }
}

/** @param {any} value @param {string} path */
function textAt(value, path) {
  for (const [, member, index] of path.matchAll(/\.([\w-]+)|\[(\d+)\]/g)) {
    if (value === null || typeof value !== "object" || !Object.hasOwn(value, member ?? index)) return ""
    value = value[member ?? index]
  }
  return value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value)
}

/** Returns at most `bytesMax` bytes, without splitting a character. */
function cut(octets, bytesMax) {
  let end = bytesMax
  while (end > bytesMax - 4 && (octets[end] & 0xc0) === 0x80) end--
  return octets.subarray(0, end)
}
