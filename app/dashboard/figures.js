/**
 * The figures of the server, once a second, and its events: for all views, from two subscriptions of one client. A user
 * who may not read all streams gets those of one topic at a time.
 *
 * @module
 */

import { History } from "/ui/chart.js"

/** The largest gap between consecutive samples; after a longer one the lines start anew. */
const GAP_US_MAX = 2_500_000
const EVENTS_MAX = 100

/** @typedef {{stream: any, topic: any}} Place in the latest sample */

/** Dispatches `sample`, `refused` and `event`. */
export class Figures extends EventTarget {
  /** The latest sample; null without one. @type {any} */
  sample = null
  /** Why there are no figures of everything. @type {any} */
  refusal = null
  /** Rates of topics in the last minute. */
  history = new History()
  /** Events and missed events, newest first. @type {{at: number, event?: any, missed?: string}[]} */
  events = []
  #client
  /** @type {import("/ui/whippet.js").Subscription[]} */
  #watched = []
  #scope = {}

  /** @param {import("/ui/whippet.js").Client} client */
  use(client) {
    this.#client = client
    this.#watch({})
  }

  /** Watches one topic, if the user may not watch everything. @param {{stream: string, topic: string}} scope */
  narrow(scope) {
    if (!this.refusal || (scope.stream === this.#scope.stream && scope.topic === this.#scope.topic)) return
    this.#forget()
    this.#watch(scope)
  }

  /** The latest sample, or the first one; null if there will be none of everything. */
  async first() {
    if (!this.sample && !this.refusal) {
      await new Promise((resolve) => ["sample", "refused"].forEach((each) => this.addEventListener(each, resolve, { once: true })))
    }
    return this.sample
  }

  /** Notes that events were missed. @param {string} sentence */
  miss(sentence) {
    this.#note({ at: Date.now() * 1000, missed: sentence })
  }

  clear() {
    this.#client = null
    for (const each of this.#watched) each.close()
    this.#watched = []
    this.#scope = {}
    this.refusal = null
    this.events = []
    this.#forget()
  }

  #forget() {
    this.sample = null
    this.history.clear()
  }

  #watch(scope) {
    for (const each of this.#watched) each.close()
    this.#scope = scope
    const stats = this.#client.subscribe({ to: "stats", ...scope }, { window: 2 })
    const news = this.#client.subscribe({ to: "events", ...scope })
    this.#watched = [stats, news]
    this.#hear(stats, (sample) => this.#take(sampleOf(sample, scope)), (error) => this.#refuse(error, scope))
    this.#hear(news, (event) => this.#note({ at: event.at, event }), (error) => this.miss(`events, because the subscription has ended: ${error.message}`))
  }

  async #hear(subscription, take, fail) {
    try {
      for await (const item of subscription) if (this.#watched.includes(subscription)) take(item)
    } catch (error) {
      if (this.#client?.state === "connected" && this.#watched.includes(subscription)) fail(error)
    }
  }

  #take(sample) {
    if (sample.at - this.sample?.at > GAP_US_MAX) this.history.clear()
    this.sample = sample
    this.history.add(new Map(placesOf(sample).map((place) => [historyKey(place), place.topic.messages_per_second])))
    this.dispatchEvent(new CustomEvent("sample", { detail: sample }))
  }

  #refuse(error, scope) {
    this.#forget()
    this.refusal = error
    this.dispatchEvent(new CustomEvent("refused", { detail: { error, scope } }))
  }

  #note(entry) {
    if (entry.event) this.events.unshift(entry)
    else if (this.events.length) this.events.unshift(entry)
    this.events.length = Math.min(this.events.length, EVENTS_MAX)
    this.dispatchEvent(new CustomEvent("event", { detail: entry.event }))
  }
}

/** Puts the sample of one topic into the form of all. @param {any} sample @param {{stream?: string}} scope */
function sampleOf(sample, { stream }) {
  if (!("topic" in sample)) return sample
  const topics = sample.topic ? [sample.topic] : []
  return { ...sample, isPart: true, streams: [{ ...sample.topic, id: null, name: stream, topics }] }
}

/** @returns {Place[]} */
export function placesOf(sample) {
  return sample.streams.flatMap((stream) => stream.topics.map((topic) => ({ stream, topic })))
}

/** @param {Place} place */
export function historyKey({ stream, topic }) {
  return JSON.stringify([stream.name, topic.name])
}

export function totalOf(things, member) {
  return things.reduce((sum, each) => sum + each[member], 0)
}
