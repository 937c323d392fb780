/**
 * The messages of a topic: live, or page by page from anywhere; with columns from JSON, downloads, and a form to produce.
 *
 * @module
 */

import { Pages, PARTITIONS_MAX } from "/ui/browse.js"
import { sentenceOf } from "/ui/dialog.js"
import { button, element, labelled, notice, say, select } from "/ui/elements.js"
import { MessageRows, ndjsonOf } from "/ui/message_rows.js"
import { plural } from "/ui/numbers.js"
import { hrefOf } from "/ui/router.js"
import { firstMessage } from "/ui/snippets.js"
import { Tail, unreadText } from "/ui/tail.js"

const STARTS = [
  ["live", "live, as they arrive"],
  ["newest", "the newest"],
  ["first", "the first"],
  ["offset", "an offset"],
  ["time", "a time"],
]
const RATES = [
  ["5", "5 a second"],
  ["1", "1 a second"],
  ["20", "20 a second"],
  ["50", "50 a second"],
]
const FORMS = ["auto", "text", "json", "hex"].map((each) => [each, each === "json" ? "JSON" : each])

export class Messages {
  #context
  #place
  #rows
  #tail
  /** @type {Pages | null} */
  #pages = null
  /** Which load of a page is current. */
  #turn = 0
  #isPaused = false
  #partitions = []
  #from = select(/** @type {any} */ (STARTS))
  #at = element("input", { autocomplete: "off", inputmode: "numeric", pattern: "[0-9]+" })
  #time = element("input", { type: "datetime-local", step: "1" })
  #partition = select([["all", "all"]])
  #form = select(/** @type {any} */ (FORMS))
  #rate = select(/** @type {any} */ (RATES))
  #header = element("input", { placeholder: "kind = new", autocomplete: "off", spellcheck: "false" })
  #columns = element("input", { placeholder: "$.id, $.customer.name", autocomplete: "off", spellcheck: "false" })
  #pause = button("Pause", () => this.#togglePause(), "primary")
  #newer = button("Newer", () => this.#turnPage("newer"))
  #older = button("Older", () => this.#turnPage("older"))
  #state = element("p", { class: "state", id: "tail-state" })
  #notice = element("p", { class: "notice", id: "tail-notice" })
  #empty = element("div")
  #onlyLive
  #onlyPages

  /** @param {import("/ui/page.js").Context} context @param {{stream: string, topic: string}} place */
  constructor(context, place, query) {
    this.#context = context
    this.#place = place
    this.#rows = new MessageRows(context.client, place)
    this.#rows.onOpen = () => this.#hold()
    this.#tail = new Tail(context.client, place, this.#rows, (state) => this.#hear(state))
    const filter = labelled("Only with header", this.#header)
    this.#onlyLive = [labelled("At most", this.#rate), filter]
    this.#onlyPages = [element("div", { class: "pair" }, this.#newer, this.#older)]
    const more = element("details", { class: "more-controls" }, element("summary", {}, "Filter, columns, format, download"))
    const download = button("Download as NDJSON", () => this.#download())
    more.append(element("div", { class: "controls" }, filter, labelled("Columns from JSON", this.#columns), labelled("Show as", this.#form), download))
    const controls = element(
      "div",
      { class: "controls" },
      labelled("Start at", this.#from),
      labelled("Offset", this.#at),
      labelled("Time", this.#time),
      labelled("Partition", this.#partition),
      this.#onlyLive[0],
      this.#pause,
      ...this.#onlyPages,
      this.#state,
    )
    this.element = element("section", { class: "card", "aria-label": "Messages" }, controls, more, this.#notice, this.#empty, this.#rows.element)
    for (const control of [this.#from, this.#partition, this.#at, this.#time]) control.addEventListener("change", () => this.#go())
    for (const control of [this.#rate, this.#header]) control.addEventListener("change", () => this.#load())
    this.#form.addEventListener("change", () => (this.#rows.form = this.#form.value))
    this.#columns.addEventListener("change", () => (this.#rows.columns = this.#columns.value))
    this.change(query)
  }

  /** @param {URLSearchParams} query */
  change(query) {
    this.#from.value = STARTS.some(([each]) => each === query.get("from")) ? query.get("from") : "live"
    const partition = query.get("partition") ?? "all"
    this.#offer(/^\d+$/.test(partition) ? partition : "all")
    const at = query.get("at") ?? ""
    this.#at.value = this.#from.value === "offset" ? at : ""
    this.#time.value = this.#from.value === "time" ? at : ""
    this.#load(query.get("open"))
  }

  /** Figures of the topic, once a second. @param {any} topic */
  show(topic) {
    this.#partitions = topic.partitions
    if (this.#partition.options.length !== topic.partitions.length + 1) this.#offer(this.#partition.value)
    if (!topic.messages_count && !this.#rows.listed.length) this.#showEmpty()
    else this.#empty.replaceChildren()
    if (this.#tail.isHeld) this.#showState()
  }

  leave() {
    this.#turn++
    this.#tail.stop()
    this.#rows.leave()
  }

  get #isLive() {
    return this.#from.value === "live"
  }

  #offer(chosen) {
    const numbers = new Set(this.#partitions.map(({ id }) => String(id)))
    if (chosen !== "all" && (!this.#partitions.length || numbers.has(chosen))) numbers.add(chosen)
    const options = ["all", ...numbers].map((each) => element("option", { value: each }, each))
    this.#partition.replaceChildren(...options)
    this.#partition.value = numbers.has(chosen) ? chosen : "all"
  }

  /** Makes the choice part of the address, so that it can be returned to. */
  #go() {
    const from = this.#from.value
    const at = from === "offset" ? this.#at.value || "0" : from === "time" ? this.#time.value || localTime(Date.now() - 3_600_000) : ""
    const partition = this.#partition.value === "all" ? "" : this.#partition.value
    const { stream, topic } = this.#place
    location.hash = hrefOf(["streams", stream, topic, "messages"], { from: from === "live" ? "" : from, at, partition })
  }

  #load(open = null) {
    const isLive = this.#isLive
    this.#turn++
    this.#pause.hidden = true
    this.#tail.stop()
    this.#rows.clear()
    this.#isPaused = false
    this.#showPause()
    this.#at.closest(".field").hidden = this.#from.value !== "offset"
    this.#time.closest(".field").hidden = this.#from.value !== "time"
    for (const each of this.#onlyLive) each.hidden = !isLive
    for (const each of this.#onlyPages) each.hidden = isLive
    say(this.#state, "")
    this.#pages = null
    if (isLive) this.#tail.begin({ partition: this.#partition.value, maxRate: Number(this.#rate.value), filter: filterOf(this.#header.value) })
    else this.#firstPage(open)
  }

  // ------------------------------------------------------------------------------------------------------------ pages

  async #firstPage(open) {
    const turn = this.#turn
    notice(this.#notice, "Loading.")
    try {
      const { partitions } = await this.#context.client.call("get_topic", this.#place)
      if (turn !== this.#turn) return
      const chosen = partitions.filter(({ id }) => this.#partition.value === "all" || String(id) === this.#partition.value)
      if (chosen.length > PARTITIONS_MAX) return notice(this.#notice, `The topic has ${plural(chosen.length, "partition")}: choose one to read.`)
      const pages = new Pages(this.#context.client, this.#place, chosen)
      const from = this.#from.value
      if (from === "time") await pages.startAt(new Date(this.#time.value).getTime() * 1000 || 0)
      else if (from === "newest") pages.start((partition) => partition.next_offset)
      else pages.start((partition) => (from === "first" ? partition.first_offset : Number(this.#at.value) || 0))
      if (turn !== this.#turn) return
      this.#pages = pages
      await this.#turnPage(from === "newest" ? "older" : "newer")
      if (open !== null) {
        const partition = Number(this.#partition.value)
        if (!this.#rows.open(partition, Number(open))) notice(this.#notice, `The message with offset ${open} no longer exists.`)
      }
    } catch (error) {
      if (turn === this.#turn) notice(this.#notice, sentenceOf(error))
    }
  }

  /** @param {"older" | "newer"} direction */
  async #turnPage(direction) {
    const turn = ++this.#turn
    const pages = this.#pages
    this.#newer.disabled = this.#older.disabled = true
    try {
      const page = await pages[direction]()
      if (turn !== this.#turn) return
      if (page.length) {
        pages.turnTo(page)
        this.#rows.clear()
        this.#rows.append(page)
      }
      notice(this.#notice, page.length || this.#rows.listed.length ? "" : "There are no messages here.")
    } catch (error) {
      if (turn === this.#turn) notice(this.#notice, sentenceOf(error))
    } finally {
      this.#newer.disabled = !pages.hasNewer
      this.#older.disabled = !pages.hasOlder
    }
  }

  // ------------------------------------------------------------------------------------------------------------- live

  #hear({ notice: text, isEnded = false }) {
    if (text !== undefined) notice(this.#notice, text)
    // There is something to pause while messages come.
    this.#pause.hidden = isEnded || !this.#rows.listed.length
    if (isEnded) this.#context.announce(text)
  }

  #togglePause() {
    this.#isPaused = !this.#isPaused
    this.#context.announce(this.#isPaused ? "Paused" : "Resumed")
    this.#showPause()
    this.#hold()
  }

  /** The list also stands still while a message is open. */
  #hold() {
    if (!this.#isLive) return
    if (this.#isPaused || this.#rows.hasOpen) this.#tail.hold()
    else this.#tail.release()
    this.#showState()
  }

  #showPause() {
    say(this.#pause, this.#isPaused ? "Resume" : "Pause")
  }

  #showState() {
    say(this.#state, this.#tail.isHeld ? unreadText(this.#tail.countUnread(this.#partitions)) : "")
  }

  #showEmpty() {
    if (this.#empty.children.length) return
    const { stream, topic } = this.#place
    this.#empty.replaceChildren(firstMessage(this.#context, stream, topic))
  }

  // --------------------------------------------------------------------------------------------------------- download

  #download() {
    const messages = this.#rows.listed
    const link = element("a", { href: URL.createObjectURL(new Blob([ndjsonOf(messages)], { type: "application/x-ndjson" })), download: `${this.#place.topic}.ndjson` })
    link.click()
    URL.revokeObjectURL(link.href)
    this.#context.announce(`Downloaded ${plural(messages.length, "message")}`)
  }
}

/** @param {string} text such as `kind` or `kind = new` */
function filterOf(text) {
  const [header, ...value] = text.split("=").map((each) => each.trim())
  if (!header) return undefined
  return value.length ? { header, value: value.join("=") } : { header }
}

function localTime(ms) {
  return new Date(ms - new Date(ms).getTimezoneOffset() * 60_000).toISOString().slice(0, 19)
}
