/**
 * Streams and their topics with their rates, and the totals, from one sample per second.
 *
 * @module
 */

import { draw, History, makeChart } from "/ui/chart.js"
import { arrange, byId, element, name, notice, say } from "/ui/elements.js"
import { bytes, count, exact, plural, rate } from "/ui/numbers.js"

export const UNKNOWN = "Waiting for figures."
const ROWS_MAX = 200
const TOTAL = ""
/** The largest gap between consecutive samples; after a longer one the lines start anew. */
const GAP_US_MAX = 2_500_000

/** @typedef {{stream: any, topic: any}} Place in the latest sample */

export class Topics {
  #choose
  #history = new History()
  /** @type {Map<string, any>} */
  #rows = new Map()
  /** @type {Map<string, any>} */
  #bodies = new Map()
  /** @type {(place: Place) => boolean} */
  #isChosen = () => false
  #sample = null

  /** @param {(place: Place) => void} choose */
  constructor(choose) {
    this.#choose = choose
    byId("topics-filter").addEventListener("input", () => this.#sample && this.#list(this.#sample))
    this.clear()
  }

  /** @param {any} sample */
  show(sample) {
    if (sample.at - this.#sample?.at > GAP_US_MAX) this.#history.clear()
    this.#sample = sample
    const places = placesOf(sample)
    const rates = new Map(places.map(({ stream, topic }) => [keyOf(stream, topic), topic.messages_per_second]))
    rates.set(TOTAL, totalOf(sample.streams, "messages_per_second"))
    this.#history.add(rates)
    this.#sum(sample, places)
    this.#list(sample)
  }

  /** @param {(place: Place) => boolean} isChosen */
  mark(isChosen) {
    this.#isChosen = isChosen
    for (const row of this.#rows.values()) row.mark(isChosen(row.place))
  }

  clear() {
    this.#isChosen = () => false
    this.#history.clear()
    this.#sample = null
    this.#rows.clear()
    this.#bodies.clear()
    arrange(byId("topics"), [byId("topics").tHead])
    byId("topics").hidden = true
    notice(byId("topics-notice"), UNKNOWN)
    for (const each of ["messages-rate", "bytes-rate", "messages", "lag"]) say(byId(`total-${each}`), "–")
  }

  #sum(sample, places) {
    const { streams } = sample
    const messagesRate = totalOf(streams, "messages_per_second")
    say(byId("total-messages-rate"), rate(messagesRate))
    say(byId("total-bytes-rate"), bytes(totalOf(streams, "bytes_per_second")))
    say(byId("total-messages"), count(totalOf(streams, "messages_count")))
    const lags = places.flatMap(({ topic }) => topic.consumer_groups.map((group) => group.lag))
    say(byId("total-lag"), lags.length ? count(Math.max(...lags)) : "–")
    const values = this.#history.of(TOTAL)
    draw(byId("total-chart"), values)
    say(byId("total-caption"), `last minute, maximum ${rate(Math.max(...values))} messages/s`)
  }

  #list(sample) {
    const wanted = byId("topics-filter").value.trim().toLowerCase()
    const fits = ({ stream, topic }) => `${stream.name} / ${topic.name}`.toLowerCase().includes(wanted)
    const places = placesOf(sample)
    const fitting = places.filter(fits)
    const listed = fitting.slice(0, ROWS_MAX)
    const empty = sample.streams.filter(
      (stream) => !stream.topics.length && stream.name.toLowerCase().includes(wanted),
    )
    const streams = sample.streams.filter(
      (stream) => listed.some((place) => place.stream === stream) || empty.slice(0, ROWS_MAX).includes(stream),
    )
    arrange(byId("topics"), [byId("topics").tHead, ...streams.map((stream) => this.#body(stream, listed))])
    byId("topics").hidden = !streams.length
    const nothing = wanted ? "No name contains this." : "There are no streams yet. New ones appear here."
    notice(byId("topics-notice"), streams.length ? "" : nothing)
    const left = fitting.length - listed.length
    notice(byId("topics-more"), left > 0 ? `and ${plural(left, "more topic")}: filter by name to see them` : "")
    this.#forget(sample)
  }

  #body(stream, listed) {
    const key = JSON.stringify([stream.id, stream.name])
    let body = this.#bodies.get(key)
    if (!body) {
      const heading = element("th", { scope: "rowgroup", colspan: "6", title: stream.name })
      body = element("tbody", {}, element("tr", { class: "stream" }, heading))
      body.rows[0].cells[0].append(name(stream.name), element("span", { class: "quiet" }))
      this.#bodies.set(key, body)
    }
    const about = stream.topics.length
      ? `${plural(stream.topics.length, "topic")}, ${bytes(stream.size_bytes)}`
      : "no topics yet"
    say(body.rows[0].querySelector(".quiet"), about)
    const rows = listed.filter((place) => place.stream === stream).map((place) => this.#row(place))
    arrange(body, [body.rows[0], ...rows])
    return body
  }

  #row(place) {
    const key = keyOf(place.stream, place.topic)
    let row = this.#rows.get(key)
    if (!row) {
      row = new Row(place.topic.name, () => this.#choose(row.place))
      row.mark(this.#isChosen(place))
      this.#rows.set(key, row)
    }
    row.show(place, this.#history.of(key))
    return row.element
  }

  /** Forgets the rows of streams and topics that no longer exist. */
  #forget(sample) {
    const keys = new Set(placesOf(sample).map(({ stream, topic }) => keyOf(stream, topic)))
    for (const key of this.#rows.keys()) if (!keys.has(key)) this.#rows.delete(key)
    const streams = new Set(sample.streams.map((stream) => JSON.stringify([stream.id, stream.name])))
    for (const key of this.#bodies.keys()) if (!streams.has(key)) this.#bodies.delete(key)
  }
}

class Row {
  #chart = makeChart()
  #button
  #cells

  constructor(topicName, choose) {
    /** @type {Place | null} */
    this.place = null
    this.#button = element("button", { class: "topic" }, name(topicName))
    this.#button.title = topicName
    this.#button.addEventListener("click", choose)
    const kinds = ["wide", "number", "number wide", "number", "number wide"]
    this.#cells = kinds.map((kind) => element("td", { class: kind }))
    this.#cells[0].append(this.#chart)
    this.element = element("tr", {}, element("th", { scope: "row" }, this.#button), ...this.#cells)
  }

  /** @param {Place} place @param {number[]} values */
  show(place, values) {
    const { topic } = (this.place = place)
    const [, messagesRate, bytesRate, messages, size] = this.#cells
    draw(this.#chart, values)
    say(messagesRate, rate(topic.messages_per_second))
    say(bytesRate, bytes(topic.bytes_per_second))
    say(messages, count(topic.messages_count))
    messages.title = exact(topic.messages_count)
    say(size, bytes(topic.size_bytes))
    size.title = [`${bytes(topic.disk_bytes)} on the disk`, ...topic.held_back].join("; ")
    size.classList.toggle("warning", topic.held_back.length > 0)
    this.element.classList.toggle("busy", topic.messages_per_second > 0)
  }

  mark(isChosen) {
    this.element.classList.toggle("chosen", isChosen)
    if (isChosen) this.#button.setAttribute("aria-current", "true")
    else this.#button.removeAttribute("aria-current")
  }
}

/** @returns {Place[]} */
export function placesOf(sample) {
  return sample.streams.flatMap((stream) => stream.topics.map((topic) => ({ stream, topic })))
}

function keyOf(stream, topic) {
  return JSON.stringify([stream.name, topic.name])
}

function totalOf(things, member) {
  return things.reduce((sum, each) => sum + each[member], 0)
}
