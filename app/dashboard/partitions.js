/**
 * The partitions of a topic: where their messages are, how much comes in, and a map of where it is hot.
 *
 * @module
 */

import { sentenceOf } from "/ui/dialog.js"
import { arrange, button, card, element, notice, say, table } from "/ui/elements.js"
import { bytes, count, exact, rate } from "/ui/numbers.js"
import { hrefOf } from "/ui/router.js"
import { addPartitions, removePartitions } from "/ui/topic_forms.js"

const REFRESHED_EVERY_MS = 5000
/** Shades of the map, besides that of a partition without messages. */
const SHADES = 5

export class Partitions {
  #context
  #place
  #found = null
  #lookedUpAt = 0
  #map = element("div", { class: "heat", role: "img", "aria-label": "Partitions by messages per second; the table has the values" })
  #notice = element("p", { class: "notice" }, "Waiting for data from the server.")
  #table = table("Partitions", [
    ["Partition", ""],
    ["Messages/s", "number"],
    ["Bytes/s", "number wide"],
    ["First offset", "number wide"],
    ["Next offset", "number"],
    ["Messages", "number wide"],
    ["Size", "number"],
    ["On disk", "number wider"],
    ["Segments", "number wide"],
  ])
  /** @type {Map<number, any>} */
  #rows = new Map()

  /** @param {import("/ui/page.js").Context} context @param {{stream: string, topic: string}} place */
  constructor(context, place) {
    this.#context = context
    this.#place = place
    this.element = card("Partitions", this.#notice, this.#map, element("div", { class: "scrolled" }, this.#table))
    const change = (act) => async () => {
      if (this.#found && (await act(context, place, this.#found))) this.#lookUp()
    }
    const tools = element("div", { class: "tools" }, button("Add partitions", change(addPartitions)), button("Remove partitions", change(removePartitions), "bad"))
    this.element.querySelector(".head").append(tools)
    this.#lookUp()
  }

  /** @param {any} topic */
  show(topic) {
    if (Date.now() - this.#lookedUpAt > REFRESHED_EVERY_MS || topic.partitions.length !== this.#found?.partitions.length) this.#lookUp()
    const known = new Map((this.#found?.partitions ?? []).map((each) => [each.id, each]))
    notice(this.#notice, topic.partitions.length ? "" : "There are no partitions: add some to send messages.")
    const rows = topic.partitions.map((each) => this.#row(each, known.get(each.id)))
    arrange(this.#table.tBodies[0], rows)
    this.#paint(topic.partitions)
  }

  async #lookUp() {
    this.#lookedUpAt = Date.now()
    try {
      this.#found = await this.#context.client.call("get_topic", this.#place)
    } catch (error) {
      notice(this.#notice, sentenceOf(error))
    }
  }

  #row(figures, details) {
    let row = this.#rows.get(figures.id)
    if (!row) {
      const { stream, topic } = this.#place
      const link = element("a", { href: hrefOf(["streams", stream, topic, "messages"], { from: "newest", partition: figures.id }) }, String(figures.id))
      const kinds = ["number", "number wide", "number wide", "number", "number wide", "number", "number wider", "number wide"]
      row = element("tr", {}, element("th", { scope: "row" }, link), ...kinds.map((kind) => element("td", { class: kind })))
      this.#rows.set(figures.id, row)
    }
    const texts = [
      rate(figures.messages_per_second),
      bytes(figures.bytes_per_second),
      exact(figures.next_offset - figures.messages_count),
      exact(figures.next_offset),
      count(figures.messages_count),
      bytes(figures.size_bytes),
      details ? bytes(details.disk_bytes) : "",
      details ? count(details.segments_count) : "",
    ]
    texts.forEach((text, i) => say(row.cells[i + 1], text))
    return row
  }

  /** A square for each partition: the more messages, the stronger. */
  #paint(partitions) {
    const most = Math.max(...partitions.map((each) => each.messages_per_second), 1)
    while (this.#map.children.length > partitions.length) this.#map.lastChild.remove()
    while (this.#map.children.length < partitions.length) this.#map.append(element("span"))
    partitions.forEach(({ id, messages_per_second: perSecond }, i) => {
      const square = this.#map.children[i]
      square.dataset.heat = String(perSecond ? Math.ceil((perSecond / most) * SHADES) : 0)
      square.title = `partition ${id}: ${rate(perSecond)} messages/s`
    })
  }
}
