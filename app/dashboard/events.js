/**
 * Events: streams, topics and groups that are created, updated, purged or deleted, and groups that are rebalanced.
 *
 * @module
 */

import { byId, element, name } from "/ui/elements.js"
import { plural, time } from "/ui/numbers.js"

const KEPT = 100
const KINDS = { stream: "stream", topic: "topic", partitions: "partitions of", consumer_group: "group" }

export class Events {
  /** @param {any} event */
  show(event) {
    this.#add(time(event.at), event.what, KINDS[event.kind] ?? event.kind, placeOf(event), detailsOf(event))
  }

  /** Notes that events were missed. @param {string} sentence */
  miss(sentence) {
    if (byId("events").children.length) this.#add(time(Date.now() * 1000), "missed", sentence)
  }

  clear() {
    byId("events").replaceChildren()
    byId("events-notice").hidden = false
  }

  #add(at, what, ...texts) {
    const words = texts.filter((each) => each !== "").flatMap((each) => [" ", each])
    const entry = element("li", {}, element("time", {}, at), " ", element("b", { class: what }, what), ...words)
    byId("events").prepend(entry)
    byId("events-notice").hidden = true
    while (byId("events").children.length > KEPT) byId("events").lastChild.remove()
  }
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
