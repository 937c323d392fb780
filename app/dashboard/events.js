/**
 * Events: streams, topics and groups that are created, updated, purged or deleted, and groups that are rebalanced.
 *
 * @module
 */

import { card, element, name } from "/ui/elements.js"
import { plural, time } from "/ui/numbers.js"

const KINDS = { stream: "stream", topic: "topic", partitions: "partitions of", consumer_group: "group" }

export class Events {
  #figures
  #list = element("ol")
  #log = element("div", { class: "events", role: "log", tabindex: "0", "aria-label": "Events" }, this.#list)
  #notice = element("p", { class: "notice" }, "Streams, topics and groups that are created, changed or deleted from now on are listed here.")
  #latest = null

  /** @param {import("/ui/figures.js").Figures} figures */
  constructor(figures) {
    this.#figures = figures
    this.element = card("Events", this.#notice, this.#log)
    this.update()
  }

  update() {
    const { events } = this.#figures
    const count = events.indexOf(this.#latest)
    const fresh = count < 0 ? events : events.slice(0, count)
    this.#list.prepend(...fresh.map(entryOf))
    while (this.#list.children.length > events.length) this.#list.lastChild.remove()
    this.#latest = events[0] ?? null
    this.#notice.hidden = events.length > 0
  }
}

function entryOf({ at, event, missed }) {
  const texts = missed ? [missed] : [KINDS[event.kind] ?? event.kind, placeOf(event), detailsOf(event)]
  const words = texts.filter((each) => each !== "").flatMap((each) => [" ", each])
  const what = missed ? "missed" : event.what
  return element("li", {}, element("time", {}, time(at)), " ", element("b", { class: what }, what), ...words)
}

function placeOf({ stream, topic, consumer_group: group }) {
  const names = [stream, topic].filter(Boolean).flatMap((each, i) => (i ? [" / ", name(each.name)] : [name(each.name)]))
  return element("span", {}, ...(group ? [name(group.name), " of "] : []), ...names)
}

function detailsOf({ what, partitions_count: partitions, members }) {
  if (partitions) return `(${partitions})`
  if (what !== "rebalanced") return ""
  return members?.length ? `: ${plural(members.length, "member")}` : ": no members"
}
