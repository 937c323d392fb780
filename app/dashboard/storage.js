/**
 * The disk of the server and its archive: how much is free, how far behind the archive is, and what is wrong with them.
 *
 * @module
 */

import { arrange, card, element, say } from "/ui/elements.js"
import { age, bytes, count, exact, plural } from "/ui/numbers.js"

/** @typedef {{free_bytes: number, total_bytes: number, reserve_bytes: number, is_full: boolean}} Disk */
/**
 * @typedef {{problem: string | null, is_refused: boolean, failures: number, completed_at: number | null,
 *   waiting_messages: number}} Archive
 */

export class Storage {
  /** @type {Map<string, any>} */
  #rows = new Map()
  #figures = element("tbody")

  constructor() {
    const figures = element("table", { id: "storage-figures", "aria-label": "Disk and archive" }, this.#figures)
    this.element = card("Disk and archive", figures)
    this.element.hidden = true
  }

  /** @param {{at: number, disk?: Disk | null, archive?: Archive | null}} sample */
  show({ at, disk, archive }) {
    const rows = [...(disk ? this.#ofDisk(disk) : []), ...(archive ? this.#ofArchive(archive, at) : [])]
    arrange(this.#figures, rows)
    this.element.hidden = !rows.length
  }

  /** @param {Disk} disk */
  #ofDisk(disk) {
    const kept = `${bytes(disk.reserve_bytes)} are reserved for data other than messages (system.disk.reserve)`
    const free = `${bytes(disk.free_bytes)} of ${bytes(disk.total_bytes)}`
    return [
      this.#row("Free on the disk", free, "", disk.is_full),
      this.#row("In reserve", bytes(disk.reserve_bytes), kept, false),
    ]
  }

  /** @param {Archive} archive @param {number} at */
  #ofArchive(archive, at) {
    const completed = archive.completed_at === null ? "not since the server started" : age(at - archive.completed_at)
    const cost = "When the last round started that archived everything: later messages would be lost with this machine"
    const failures = "Since the server started; its log contains the reasons"
    const hasProblem = archive.problem !== null
    const waiting = `${exact(archive.waiting_messages)} messages are only on this machine`
    return [
      this.#row("Archived completely", completed, cost, hasProblem),
      this.#row("Waiting for the archive", plural(archive.waiting_messages, "message"), waiting, hasProblem),
      this.#row("Failures of the archive", count(archive.failures), failures, false),
    ]
  }

  #row(label, value, title, isWrong) {
    let row = this.#rows.get(label)
    if (!row) {
      row = element("tr", {}, element("th", { scope: "row" }, label), element("td", { class: "number" }))
      this.#rows.set(label, row)
    }
    const [, cell] = row.cells
    say(cell, value)
    cell.title = title
    row.classList.toggle("wrong", isWrong)
    return row
  }
}

/** What is wrong with them; it contains nothing that changes all the time, because it is read out when it changes. */
export function problemsOf({ disk, archive }) {
  return [problemOfDisk(disk), problemOfArchive(archive)].filter(Boolean)
}

/** @param {Disk | null | undefined} disk */
function problemOfDisk(disk) {
  return disk?.is_full ? "The disk is full: messages are refused until there is more space." : ""
}

/** @param {Archive | null | undefined} archive */
function problemOfArchive(archive) {
  if (archive?.is_refused) return "Another server uses the archive: this server no longer archives anything."
  return archive?.problem ? "Not everything could be archived. The log of the server contains the reason." : ""
}
