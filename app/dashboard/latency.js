/**
 * How long commands take, by transport: the time that the server needs, without the network.
 *
 * @module
 */

import { card, element, notice, table } from "/ui/elements.js"
import { count } from "/ui/numbers.js"

export class Latency {
  #notice = element("p", { class: "notice" }, "No messages were sent or polled in the last minute.")
  #table = table("Latency", [
    ["Last minute", ""],
    ["Count", "number"],
    ["p50", "number"],
    ["p99", "number"],
  ])

  constructor() {
    this.#table.hidden = true
    this.element = card("Latency by transport", this.#notice, this.#table)
  }

  /** @param {{latencies: {command: string, transport: string, count: number, p50: number | null, p99: number | null}[]}} activity */
  show({ latencies }) {
    const rows = latencies.map(({ command, transport, count: many, p50, p99 }) => {
      const what = `${command === "send_messages" ? "send" : "poll"} over ${transport.toUpperCase()}`
      const figures = [count(many), duration(p50), duration(p99)].map((text) => element("td", { class: "number" }, text))
      return element("tr", {}, element("th", { scope: "row" }, what), ...figures)
    })
    this.#table.tBodies[0].replaceChildren(...rows)
    this.#table.hidden = !rows.length
    notice(this.#notice, rows.length ? "" : "No messages were sent or polled in the last minute.")
  }
}

/** They are counted by bounds, so this is the bound. @param {number | null} seconds null: above all bounds */
function duration(seconds) {
  if (seconds === null) return "over 30 s"
  return seconds < 0.001 ? `≤ ${Math.round(seconds * 1e6)} µs` : seconds < 1 ? `≤ ${seconds * 1000} ms` : `≤ ${seconds} s`
}
