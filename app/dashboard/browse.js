/**
 * Pages of messages of one or all partitions, from an offset, a time, the first or the newest message, in both directions.
 *
 * @module
 */

import { newestFirst } from "/ui/message_rows.js"

export const PAGE = 50
/** More partitions are polled one at a time. */
export const PARTITIONS_MAX = 32

/** @typedef {{id: number, first_offset: number, next_offset: number}} Partition */

/** The part of the log that is shown, as offsets by partition: from `low`, up to and not including `high`. */
export class Pages {
  #client
  #place
  /** @type {Partition[]} */
  #partitions
  #low = new Map()
  #high = new Map()

  /** @param {Partition[]} partitions those to read */
  constructor(client, place, partitions) {
    this.#client = client
    this.#place = place
    this.#partitions = partitions
  }

  /** Starts before these offsets, or after all messages. @param {(partition: Partition) => number} at */
  start(at) {
    for (const each of this.#partitions) {
      const offset = Math.min(Math.max(at(each), each.first_offset), each.next_offset)
      this.#low.set(each.id, offset)
      this.#high.set(each.id, offset)
    }
  }

  /** Starts with the first message of each partition at this time or later. @param {number} us since 1970 */
  async startAt(us) {
    const found = await Promise.all(this.#partitions.map((each) => this.#poll(each, { kind: "timestamp", value: us, count: 1 })))
    this.start((partition) => found.flat().find((each) => each.partition_id === partition.id)?.header.offset ?? partition.next_offset)
  }

  get hasOlder() {
    return this.#partitions.some(({ id, first_offset: first }) => this.#low.get(id) > first)
  }

  /** Whether there were newer messages when the partitions were looked up. */
  get hasNewer() {
    return this.#partitions.some(({ id, next_offset: next }) => this.#high.get(id) < next)
  }

  /** @returns {Promise<any[]>} newest first */
  async older() {
    const before = (partition) => {
      const from = Math.max(this.#low.get(partition.id) - PAGE, partition.first_offset)
      return { kind: "offset", value: from, count: this.#low.get(partition.id) - from }
    }
    const found = await Promise.all(this.#partitions.map((each) => this.#poll(each, before(each))))
    const fitting = found.flat().filter(({ partition_id: id, header }) => header.offset < this.#low.get(id))
    const page = fitting.sort(newestFirst).slice(0, PAGE)
    this.#take(page)
    return page
  }

  /** @returns {Promise<any[]>} newest first */
  async newer() {
    const after = ({ id }) => ({ kind: "offset", value: this.#high.get(id), count: PAGE })
    const found = await Promise.all(this.#partitions.map((each) => this.#poll(each, after(each))))
    const page = found.flat().sort(newestFirst).slice(-PAGE)
    this.#take(page)
    return page
  }

  /** Forgets what was shown before this page. @param {any[]} page */
  turnTo(page) {
    for (const { id } of this.#partitions) {
      const offsets = page.filter((each) => each.partition_id === id).map(({ header }) => header.offset)
      if (!offsets.length) continue
      this.#low.set(id, Math.min(...offsets))
      this.#high.set(id, Math.max(...offsets) + 1)
    }
  }

  #take(page) {
    for (const { partition_id: id, header } of page) {
      this.#low.set(id, Math.min(this.#low.get(id), header.offset))
      this.#high.set(id, Math.max(this.#high.get(id), header.offset + 1))
    }
  }

  async #poll({ id }, query) {
    if (query.count <= 0) return []
    const { messages } = await this.#client.call("poll_messages", { ...this.#place, partition_id: id, ...query })
    return messages.map((each) => ({ ...each, partition_id: id }))
  }
}
