/**
 * The overview: what needs attention, how much comes in and goes out, and where.
 *
 * @module
 */

import { TimeChart, draw, makeChart } from "/ui/chart.js"
import { arrange, card, element, labelled, name, notice, say, select, table } from "/ui/elements.js"
import { Events } from "/ui/events.js"
import { historyKey, placesOf, totalOf } from "/ui/figures.js"
import { Groups } from "/ui/groups.js"
import { Latency } from "/ui/latency.js"
import { bytes, count, plural, rate } from "/ui/numbers.js"
import { topicHref } from "/ui/router.js"
import { nextStep } from "/ui/snippets.js"
import { Storage, problemsOf } from "/ui/storage.js"
import { byNameForm, UNKNOWN } from "/ui/streams.js"

const LISTED = 10
/** Ranges of the charts, as the server keeps them, with their length and the width of a point in seconds. */
const RANGES = /** @type {[string, string, number, number][]} */ ([
  ["5m", "5 minutes", 300, 1],
  ["1h", "1 hour", 3600, 12],
  ["24h", "24 hours", 86400, 300],
])

export class Overview {
  title = "Overview"
  #context
  #attention = element("div", { class: "attention", role: "alert", hidden: "" }, element("ul"))
  #tiles
  #range = select(RANGES.map(([period, text]) => /** @type {[string, string]} */ ([period, text])))
  #messages = new TimeChart("Messages per second", [{ name: "messages_in", label: "in" }, { name: "messages_out", label: "polled" }], rate)
  #bytes = new TimeChart("Bytes per second", [{ name: "bytes_in", label: "in" }], bytes)
  #charts
  /** Points of the chosen range, oldest first. @type {any[]} */
  #points = []
  #busiest
  #groups
  #storage = new Storage()
  #latency = new Latency()
  #events
  #next = element("div", { class: "wide-card" })
  #refresh = 0
  /** Which series of readings is current. */
  #turn = 0
  #problem = element("p", { class: "problem", hidden: "" })

  /** @param {import("/ui/page.js").Context} context */
  constructor(context) {
    this.#context = context
    this.#events = new Events(context.figures)
    this.#groups = new Groups(context, null, LISTED)
    this.#busiest = new Busiest(context)
    this.#tiles = new Map(
      ["Messages/s in", "Messages/s polled", "Bytes/s in", "Messages stored", "Largest lag", "Connections"].map((term) => [term, element("dd", {}, "–")]),
    )
    const tiles = [...this.#tiles].map(([term, figure]) => element("div", {}, element("dt", {}, term), figure))
    const range = labelled("Charts of the last", this.#range, "inline")
    this.#charts = element("section", { class: "card charts", "aria-label": "Rates" }, range, this.#problem, this.#messages.element, this.#bytes.element)
    this.#range.addEventListener("change", () => this.#load())
    const cards = [this.#busiest.element, this.#groups.element, this.#latency.element, this.#storage.element, this.#events.element]
    this.element = element(
      "div",
      { class: "overview" },
      this.#attention,
      element("section", { class: "card tiles", "aria-label": "All streams" }, element("dl", {}, ...tiles)),
      this.#next,
      this.#charts,
      element("div", { class: "cards" }, ...cards),
    )
    if (context.figures.refusal) this.refuse()
    this.#load()
  }

  /** @param {any} sample */
  show(sample) {
    const { streams } = sample
    this.#say("Messages/s in", rate(totalOf(streams, "messages_per_second")))
    this.#say("Bytes/s in", bytes(totalOf(streams, "bytes_per_second")))
    this.#say("Messages stored", count(totalOf(streams, "messages_count")))
    const lags = placesOf(sample).flatMap(({ topic }) => topic.consumer_groups.map((group) => group.lag))
    this.#say("Largest lag", lags.length ? count(Math.max(...lags)) : "–")
    this.#attend(sample)
    this.#groups.show(sample)
    this.#busiest.show(sample)
    this.#storage.show(sample)
    const isEmpty = !streams.length && !sample.isPart
    if (isEmpty && !this.#next.children.length) this.#next.replaceChildren(card("Start here", nextStep(this.#context)))
    if (!isEmpty) this.#next.replaceChildren()
  }

  hearEvent() {
    this.#events.update()
  }

  refuse() {
    this.#busiest.refuse()
    this.#charts.hidden = true
  }

  leave() {
    clearTimeout(this.#refresh)
    this.#turn++
  }

  #say(term, text) {
    say(this.#tiles.get(term), text)
  }

  /** Reads the points of the range from the server, and again and again those since. */
  async #load() {
    clearTimeout(this.#refresh)
    this.#points = []
    this.#turn++
    await this.#more(/** @type {any} */ (RANGES.find(([each]) => each === this.#range.value)))
  }

  async #more(range) {
    const [period, , seconds, width] = range
    const turn = this.#turn
    try {
      const since = this.#points.at(-1)?.at
      const found = await this.#context.client.call("get_activity", { period, ...(since && { since }) })
      if (turn !== this.#turn) return
      this.#points = [...this.#points, ...found.points].filter(({ at }) => at > found.at - seconds * 1e6)
      this.#messages.show(this.#points, seconds)
      this.#bytes.show(this.#points, seconds)
      this.#latency.show(found)
      this.#say("Connections", count(Object.values(found.connections).reduce((sum, each) => sum + each, 0)))
      this.#say("Messages/s polled", rate(found.latest?.messages_out ?? 0))
      notice(this.#problem, "")
    } catch (error) {
      if (turn !== this.#turn) return
      // Without the permission there is nothing to wait for.
      this.#charts.hidden = this.#latency.element.hidden = error.code === "unauthorized"
      if (error.code === "unauthorized") return
      if (error.code !== "disconnected") notice(this.#problem, `The charts could not be loaded: ${error.message}`)
    }
    this.#refresh = setTimeout(() => this.#more(range), Math.min(width, 5) * 1000)
  }

  #attend(sample) {
    const groups = placesOf(sample).flatMap(({ stream, topic }) => topic.consumer_groups.map((group) => ({ stream, topic, group })))
    const abandoned = groups.filter(({ group }) => group.lag > 0 && !group.members_count)
    const held = placesOf(sample).filter(({ topic }) => topic.held_back.length)
    const problems = problemsOf(sample).map((text) => [text])
    for (const place of held.slice(0, 3)) {
      problems.push([link(place, "groups"), ": expired messages stay on the disk, because a consumer has not read them."])
    }
    if (abandoned.length) {
      const names = abandoned.slice(0, 3).flatMap((place, i) => [i ? ", " : "", groupLink(place)])
      const more = abandoned.length > 3 ? ` and ${abandoned.length - 3} more` : ""
      problems.push([`${plural(abandoned.length, "group")} ${abandoned.length === 1 ? "has" : "have"} a lag but no members: `, ...names, `${more}.`])
    }
    const key = JSON.stringify(problems.map((each) => each.map((part) => (typeof part === "string" ? part : part.textContent))))
    this.#attention.hidden = !problems.length
    if (this.#attention.dataset.shown === key) return
    this.#attention.dataset.shown = key
    this.#attention.firstChild.replaceChildren(...problems.map((each) => element("li", {}, ...each)))
  }
}

function link(place, tab) {
  return element("a", { href: topicHref(place, tab) }, name(place.stream.name), " / ", name(place.topic.name))
}

function groupLink(place) {
  return element("a", { href: topicHref(place, "groups") }, name(place.group.name))
}

/** The topics with the most messages per second, or else the largest ones. */
class Busiest {
  #context
  #notice = element("p", { class: "notice" }, UNKNOWN)
  #byName = byNameForm()
  #table = table("Busiest topics", [
    ["Topic", ""],
    ["Last minute", "wide"],
    ["Messages/s", "number"],
    ["Messages", "number"],
  ])
  /** @type {Map<string, any>} */
  #rows = new Map()

  /** @param {import("/ui/page.js").Context} context */
  constructor(context) {
    this.#context = context
    this.#byName.hidden = true
    this.#table.hidden = true
    this.element = card("Busiest topics", this.#notice, this.#byName, this.#table)
  }

  refuse() {
    notice(this.#notice, "You have no permission to read all streams. Open a topic by its name.")
    this.#byName.hidden = false
  }

  show(sample) {
    const places = placesOf(sample)
    const order = (a, b) => b.topic.messages_per_second - a.topic.messages_per_second || b.topic.messages_count - a.topic.messages_count
    const listed = places.sort(order).slice(0, LISTED)
    const rows = new Map(listed.map((place) => [historyKey(place), this.#rows.get(historyKey(place)) ?? rowOf(place)]))
    this.#rows = rows
    arrange(this.#table.tBodies[0], [...rows.values()])
    for (const place of listed) {
      const [, chart, messagesRate, messages] = rows.get(historyKey(place)).cells
      draw(chart.firstChild, this.#context.figures.history.of(historyKey(place)))
      say(messagesRate, rate(place.topic.messages_per_second))
      say(messages, count(place.topic.messages_count))
    }
    this.#table.hidden = !listed.length
    if (!sample.isPart) notice(this.#notice, listed.length ? "" : "There are no topics yet. New ones appear here.")
  }
}

function rowOf(place) {
  const where = element("span", { class: "quiet" }, name(place.stream.name))
  const to = element("a", { href: topicHref(place) }, name(place.topic.name))
  const chart = element("td", { class: "wide" }, makeChart())
  return element("tr", {}, element("th", { scope: "row" }, to, where), chart, element("td", { class: "number" }), element("td", { class: "number" }))
}
