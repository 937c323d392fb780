/**
 * The messages of one topic as they arrive, newest first. Nobody can read thousands per second, so the server is asked
 * to skip messages beyond a rate; a line in the list stands for those that are not shown, and opens them.
 *
 * @module
 */

import { Pages, PARTITIONS_MAX } from "/ui/browse.js"
import { plural } from "/ui/numbers.js"

const ROWS_MAX = 200
/** On narrow screens. */
const ROWS_MAX_NARROW = 60
/** Often enough to seem live, rarely enough to be read: less often while messages are left out. */
const SHOWN_EVERY_MS = 250
const SHOWN_EVERY_MS_BUSY = 1000
const AT_FIRST = 20
const narrow = matchMedia("(max-width: 639px)")

export class Tail {
  #client
  #place
  #rows
  #report
  /** @type {import("/ui/whippet.js").Subscription | null} */
  #subscription = null
  /** Received, not shown yet. @type {any[]} */
  #received = []
  /** The offset of the newest message of each partition that is shown. @type {Map<number, number>} */
  #seen = new Map()
  #isFiltered = false
  /** Whether messages were left out the last time. */
  #isBusy = false
  /** The position after the messages shown. @type {string | undefined} */
  #cursor
  #timer = 0
  /** Which beginning is current. */
  #turn = 0
  #resume = () => {}
  /** @type {Promise<void> | null} */
  #held = null

  /** @param {(state: {notice?: string, isEnded?: boolean}) => void} report */
  constructor(client, place, rows, report) {
    this.#client = client
    this.#place = place
    this.#rows = rows
    this.#report = report
  }

  /** @param {{partition: string, maxRate: number, filter?: any}} wanted */
  begin({ partition, maxRate, filter }) {
    this.stop()
    this.#rows.clear()
    this.#isFiltered = filter !== undefined
    this.#report({ notice: "Waiting for messages." })
    this.#begin(partition, { max_rate: maxRate, behind: "skip", ...(this.#isFiltered && { filter }) })
  }

  /** Shows some messages that are there already, which the rate does not limit, then those that arrive. */
  async #begin(partition, limits) {
    const turn = this.#turn
    const recent = this.#isFiltered ? null : await this.#recent(partition)
    if (turn !== this.#turn) return
    for (const message of recent?.messages.toReversed() ?? []) this.#rows.prepend(message)
    if (recent?.messages.length) this.#report({ notice: "" })
    for (const [id, offset] of recent?.next ?? []) this.#seen.set(id, offset - 1)
    const from = recent?.next.size ? { offsets: Object.fromEntries(recent.next) } : { from: "new" }
    const number = partition === "all" ? partition : Number(partition)
    this.#subscription = this.#client.subscribe({ to: "topic", ...this.#place, partition: number, ...from, ...limits })
    this.#follow(this.#subscription)
  }

  /** The newest messages, and the next offsets by partition; null if they cannot be read at once. */
  async #recent(partition) {
    try {
      const { partitions } = await this.#client.call("get_topic", this.#place)
      const chosen = partitions.filter(({ id }) => partition === "all" || String(id) === partition)
      if (chosen.length > PARTITIONS_MAX) return null
      const pages = new Pages(this.#client, this.#place, chosen)
      pages.start(({ next_offset: next }) => next)
      const messages = (await pages.older()).slice(0, AT_FIRST)
      return { messages, next: new Map(chosen.map(({ id, next_offset: next }) => [id, next])) }
    } catch (error) {
      // The subscription reports what is wrong, if it concerns it.
      return null
    }
  }

  stop() {
    this.#turn++
    this.#subscription?.close()
    this.#subscription = null
    this.release()
    clearTimeout(this.#timer)
    this.#timer = 0
    this.#cursor = undefined
    this.#received = []
    this.#seen.clear()
  }

  hold() {
    this.#held ??= new Promise((resolve) => (this.#resume = resolve))
  }

  release() {
    this.#resume()
    this.#held = null
    if (this.#received.length) this.#showSoon()
  }

  get isHeld() {
    return this.#held !== null
  }

  /** How many messages there are after those shown. @param {any[]} partitions from the latest figures */
  countUnread(partitions) {
    const pairs = (this.#cursor ?? "").split(",").map((each) => each.split(":").map(Number))
    const read = new Map(/** @type {[number, number][]} */ (pairs))
    return partitions.reduce((sum, { id, next_offset: end }) => sum + Math.max(end - (read.get(id) ?? end), 0), 0)
  }

  async #follow(subscription) {
    try {
      await subscription.ready
      this.#cursor = subscription.cursor
      for await (const message of subscription) {
        await this.#held
        if (subscription !== this.#subscription) return
        this.#cursor = subscription.cursor
        this.#received.push(message)
        if (this.#received.length > most()) this.#received.shift()
        this.#showSoon()
      }
    } catch (error) {
      if (subscription === this.#subscription) this.#report({ notice: `The subscription has ended: ${error.message}`, isEnded: true })
    }
  }

  #showSoon() {
    this.#timer ||= setTimeout(() => this.#showNew(), this.#isBusy ? SHOWN_EVERY_MS_BUSY : SHOWN_EVERY_MS)
  }

  #showNew() {
    this.#timer = 0
    if (this.#held) return
    const received = this.#received
    this.#received = []
    // One line for all messages that were left out among these, where the first are missing.
    const missing = received.map((message) => (this.#isFiltered ? [] : this.#missingBefore(message)))
    const first = missing.findIndex((ranges) => ranges.length)
    this.#isBusy = first >= 0
    received.forEach((message, i) => this.#rows.prepend(message, i === first ? missing.flat() : []))
    this.#rows.trim(most())
    this.#report({ notice: "" })
  }

  /** @returns {import("/ui/message_rows.js").Range[]} */
  #missingBefore({ partition_id: partition, header }) {
    const before = this.#seen.get(partition)
    this.#seen.set(partition, header.offset)
    if (before === undefined || header.offset <= before + 1) return []
    return [{ partition, from: before + 1, to: header.offset - 1 }]
  }
}

function most() {
  return narrow.matches ? ROWS_MAX_NARROW : ROWS_MAX
}

export function unreadText(count) {
  return `Paused: ${plural(count, "new message")}`
}
