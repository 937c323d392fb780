/**
 * The server itself: what it is compatible with, what it uses of the machine, and the limits that clients meet, with their settings.
 *
 * @module
 */

import { sentenceOf } from "/ui/dialog.js"
import { card, element, labelled, notice, table } from "/ui/elements.js"
import { bytes, count, dayAndTime } from "/ui/numbers.js"

const REFRESHED_EVERY_MS = 5000

export class Server {
  title = "Server"
  #context
  #timer = 0
  #isOver = false
  #limits = []
  #notice = element("p", { class: "notice" }, "Loading.")
  #facts = element("dl", { class: "facts" })
  #limitsNotice = element("p", { class: "notice" }, "Loading.")
  #filter = element("input", { type: "search", placeholder: "Filter", autocomplete: "off", spellcheck: "false", "data-search": "" })
  #table = table("Limits", [
    ["Setting", ""],
    ["Limit", "number"],
    ["Meaning", "wide"],
  ])

  /** @param {import("/ui/page.js").Context} context */
  constructor(context) {
    this.#context = context
    const limits = card("Limits", this.#limitsNotice, element("div", { class: "scrolled" }, this.#table))
    limits.querySelector(".head").append(labelled("Show only limits that contain", this.#filter, "only-control"))
    this.#filter.addEventListener("input", () => this.#showLimits())
    this.#table.hidden = true
    this.element = element("div", { class: "stack" }, card("Server", this.#notice, this.#facts), limits)
    this.#read()
    this.#readLimits()
  }

  leave() {
    this.#isOver = true
    clearTimeout(this.#timer)
  }

  async #read() {
    try {
      const stats = await this.#context.client.call("get_stats", {})
      if (this.#isOver) return
      this.#facts.replaceChildren(...factsOf(stats).map(([term, text]) => element("div", {}, element("dt", {}, term), element("dd", {}, text))))
      notice(this.#notice, "")
    } catch (error) {
      if (this.#isOver) return
      notice(this.#notice, error.code === "unauthorized" ? "You have no permission to see the statistics of the server." : sentenceOf(error))
      if (error.code === "unauthorized") return
    }
    this.#timer = setTimeout(() => this.#read(), REFRESHED_EVERY_MS)
  }

  async #readLimits() {
    try {
      this.#limits = await this.#context.client.call("get_limits", {})
      this.#showLimits()
    } catch (error) {
      notice(this.#limitsNotice, sentenceOf(error))
    }
  }

  #showLimits() {
    const wanted = this.#filter.value.trim().toLowerCase()
    const rows = this.#limits.map(cellsOf).filter((texts) => texts.join(" ").toLowerCase().includes(wanted))
    const made = rows.map(([setting, value, meaning]) =>
      element("tr", {}, element("th", { scope: "row" }, setting), element("td", { class: "number" }, value), element("td", { class: "wide" }, meaning)),
    )
    this.#table.tBodies[0].replaceChildren(...made)
    this.#table.hidden = !made.length
    notice(this.#limitsNotice, made.length ? "" : "No limit matches the filter.")
  }
}

/** @returns {[string, string][]} */
function factsOf(stats) {
  return [
    ["Compatible with", `Iggy ${stats.iggy_server_version}`],
    ["Host", `${stats.hostname}, ${stats.os_name} ${stats.os_version}, kernel ${stats.kernel_version}`],
    ["Process", `${stats.process_id}, started ${dayAndTime(stats.start_time)}`],
    ["CPU", `${Math.round(stats.cpu_usage)} % of a core; the machine: ${Math.round(stats.total_cpu_usage)} %`],
    ["Memory", `${readable(stats.memory_usage)}; the machine: ${readable(stats.available_memory)} of ${readable(stats.total_memory)} available`],
    ["Disk", `${readable(stats.free_disk_space)} of ${readable(stats.total_disk_space)} free`],
    ["Threads", count(stats.threads_count)],
    ["Open files", `${count(stats.open_files_count)} of at most ${count(stats.open_files_limit)}`],
    ["Data", `${count(stats.streams_count)} streams, ${count(stats.topics_count)} topics, ${count(stats.partitions_count)} partitions, ${count(stats.segments_count)} segments`],
    ["Clients", count(stats.clients_count)],
    ["Consumer groups", count(stats.consumer_groups_count)],
  ]
}

const UNITS = { B: 1, KB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12, KIB: 2 ** 10, MIB: 2 ** 20, GIB: 2 ** 30, TIB: 2 ** 40 }

/** The server sends sizes exactly, such as `1.025 KB`. @param {string} exactSize */
function readable(exactSize) {
  const [number, unit] = exactSize.split(" ")
  const factor = UNITS[unit?.toUpperCase()]
  return factor ? bytes(Number(number) * factor) : exactSize
}

/** @returns {[setting: string, value: string, meaning: string]} */
function cellsOf({ key, value, unit, meaning }) {
  if (value === null) return [key, "none", meaning]
  const text = unit === "bytes" ? bytes(value) : unit === "number" ? count(value) : `${count(value)} ${unit === "seconds" ? "s" : "µs"}`
  return [key, text, meaning]
}
