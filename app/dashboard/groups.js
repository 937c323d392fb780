/**
 * Consumer groups, those with the largest lag first.
 *
 * @module
 */

import { arrange, byId, element, name, notice, say } from "/ui/elements.js"
import { count, exact, plural } from "/ui/numbers.js"
import { placesOf, UNKNOWN } from "/ui/topics.js"

const ROWS_MAX = 50

export class Groups {
  /** @type {Map<string, any>} */
  #rows = new Map()

  constructor() {
    this.clear()
  }

  /** @param {any} sample */
  show(sample) {
    const groups = placesOf(sample).flatMap(({ stream, topic }) =>
      topic.consumer_groups.map((group) => ({ stream, topic, group })),
    )
    groups.sort((a, b) => b.group.lag - a.group.lag || a.group.name.localeCompare(b.group.name))
    const listed = groups.slice(0, ROWS_MAX)
    const most = Math.max(...listed.map(({ group }) => group.lag), 1)
    const before = this.#rows
    this.#rows = new Map()
    const rows = listed.map((place) => {
      const key = JSON.stringify([place.stream.name, place.topic.name, place.group.name])
      const row = before.get(key) ?? makeRow(place)
      this.#rows.set(key, row)
      fill(row, place.group, most)
      return row
    })
    arrange(byId("groups").tBodies[0], rows)
    byId("groups").hidden = !rows.length
    notice(byId("groups-notice"), rows.length ? "" : "There are no consumer groups.")
    const left = groups.length - listed.length
    notice(byId("groups-more"), left ? `and ${plural(left, "more group")} with a smaller lag` : "")
  }

  clear() {
    this.show({ streams: [] })
    notice(byId("groups-notice"), UNKNOWN)
  }
}

function makeRow({ stream, topic, group }) {
  const where = element("span", { class: "quiet" }, name(stream.name), " / ", name(topic.name))
  const bar = element("span", { class: "lag" }, element("span"))
  return element(
    "tr",
    {},
    element("th", { scope: "row", title: group.name }, name(group.name), where),
    element("td", { class: "number" }),
    element("td", { class: "number" }, element("span", { class: "figure" }), bar),
  )
}

function fill(row, group, most) {
  const [, members, lag] = row.cells
  say(members, group.members_count ? count(group.members_count) : "none")
  say(lag.querySelector(".figure"), count(group.lag))
  lag.title = `${exact(group.lag)} messages that the group has not committed`
  lag.querySelector(".lag > span").style.width = `${(group.lag / most) * 100}%`
  // Without members, the lag can only grow.
  row.classList.toggle("abandoned", group.lag > 0 && !group.members_count)
}
