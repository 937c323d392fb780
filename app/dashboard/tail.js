/**
 * The messages of one topic as they arrive, newest first. Nobody can read thousands per second, so the server is asked
 * to skip messages beyond a rate, and the page shows how many were skipped.
 *
 * @module
 */

import { byId, element, name, notice, say } from "/ui/elements.js"
import { bytes, count, exact, plural, preciseTime, rate } from "/ui/numbers.js"
import { headerText, shown } from "/ui/payload.js"
import { bytesOf } from "/ui/whippet.js"

const MESSAGES_MAX = 200
/** On narrow screens, where they are at the end of a long column. */
const MESSAGES_MAX_NARROW = 50
/** Of payloads, in base64. */
const KEPT_LETTERS_MAX = 16 << 20
const RATE_MAX = 40
/** Often enough to seem live, rarely enough to be read. */
const SHOWN_EVERY_MS = 200
const AT_FIRST = 20
const SHOWN_BYTES = 2048
const narrow = matchMedia("(max-width: 640px)")

export class Tail {
  /** @type {import("/ui/whippet.js").Client} */
  #client
  #announce
  /** @type {import("/ui/whippet.js").Subscription | null} */
  #subscription = null
  /** @type {{stream: string | number, topic: string | number} | null} */
  #place = null
  /** Already shown, newest last. @type {any[]} */
  #kept = []
  /** Received, not shown yet. @type {any[]} */
  #received = []
  /** The position after the messages shown. @type {string | undefined} */
  #cursor
  #timer = 0
  #resume = () => {}
  /** @type {Promise<void> | null} */
  #paused = null
  /** From the latest figures. @type {any[]} */
  #partitions = []

  /** @param {(sentence: string) => void} announce */
  constructor(announce) {
    this.#announce = announce
    byId("tail-pause").addEventListener("click", () => this.#toggle())
    byId("tail-form").addEventListener("change", () => this.#showAgain())
    narrow.addEventListener("change", () => this.#showAgain())
    for (const id of ["tail-from", "tail-partition"]) byId(id).addEventListener("change", () => this.#begin())
  }

  /** @param {import("/ui/whippet.js").Client} client */
  use(client) {
    this.#client = client
  }

  /** @param {{stream: string | number, topic: string | number}} place @param {(Node | string)[]} title */
  open(place, title) {
    this.#place = place
    byId("tail-title").replaceChildren(...title)
    byId("tail-controls").hidden = false
    say(byId("tail-about"), "")
    byId("tail-partition").replaceChildren(element("option", { value: "all" }, "all"))
    byId("tail-from").value = "last"
    this.#begin()
  }

  /** Figures of the topic, once a second. @param {any} topic */
  describe(topic) {
    const { partitions } = topic
    const figures = [plural(partitions.length, "partition"), plural(topic.messages_count, "message")]
    say(byId("tail-about"), [...figures, bytes(topic.size_bytes), `${rate(topic.messages_per_second)}/s`].join(" · "))
    const select = byId("tail-partition")
    if (select.options.length !== partitions.length + 1) {
      const before = select.value
      const choices = partitions.map(({ id }) => element("option", { value: String(id) }, String(id)))
      select.replaceChildren(element("option", { value: "all" }, "all"), ...choices)
      select.value = partitions.some(({ id }) => String(id) === before) ? before : "all"
    }
    this.#partitions = partitions
    this.#showState()
  }

  clear() {
    this.#stop()
    this.#place = null
    this.#empty()
    byId("tail-controls").hidden = true
    byId("tail-title").replaceChildren("Messages")
    say(byId("tail-about"), "")
    notice(byId("tail-notice"), "Choose a topic to see its messages as they arrive.")
  }

  // ------------------------------------------------------------------------------------------------------- following

  #begin() {
    this.#stop()
    this.#empty()
    const from = byId("tail-from").value
    const partition = byId("tail-partition").value
    this.#subscription = this.#client.subscribe({
      to: "topic",
      ...this.#place,
      partition: partition === "all" ? partition : Number(partition),
      ...(from === "last" ? { last: AT_FIRST } : { from }),
      max_rate: RATE_MAX,
      // From the first message on, every message is wanted; otherwise the current ones are.
      behind: from === "first" ? "hold" : "skip",
    })
    notice(byId("tail-notice"), "Waiting for messages.")
    this.#follow(this.#subscription)
  }

  async #follow(subscription) {
    let skipped = 0
    try {
      await subscription.ready
      this.#cursor = subscription.cursor
      for await (const message of subscription) {
        await this.#paused
        if (subscription !== this.#subscription) return
        const missing = subscription.skipped - skipped
        skipped = subscription.skipped
        this.#cursor = subscription.cursor
        this.#received.push({ message, missing })
        if (this.#received.length > most()) this.#drop()
        this.#timer ||= setTimeout(() => this.#showNew(), SHOWN_EVERY_MS)
      }
    } catch (error) {
      if (subscription !== this.#subscription) return
      notice(byId("tail-notice"), `The subscription has ended: ${error.message}`)
      this.#announce(`The subscription has ended: ${error.message}`)
    }
  }

  /** Drops the oldest message that was not shown yet. */
  #drop() {
    const [{ missing }, next] = this.#received.splice(0, 2)
    this.#received.unshift({ message: next.message, missing: missing + next.missing + 1 })
  }

  #stop() {
    this.#subscription?.close()
    this.#subscription = null
    this.#unpause()
  }

  // ----------------------------------------------------------------------------------------------------------- pauses

  #toggle() {
    if (this.#paused) {
      this.#unpause()
      this.#announce("Resumed")
    } else {
      this.#paused = new Promise((resolve) => (this.#resume = resolve))
      say(byId("tail-pause"), "Resume")
      this.#announce("Paused")
    }
    this.#showState()
  }

  #unpause() {
    this.#resume()
    this.#paused = null
    say(byId("tail-pause"), "Pause")
    this.#showState()
  }

  #showState() {
    say(byId("tail-state"), this.#paused ? `Paused: ${plural(this.#countUnread(), "new message")}` : "")
  }

  #countUnread() {
    const pairs = (this.#cursor ?? "").split(",").map((each) => each.split(":").map(Number))
    const read = new Map(/** @type {[number, number][]} */ (pairs))
    return this.#partitions.reduce((sum, { id, next_offset: end }) => sum + Math.max(end - (read.get(id) ?? end), 0), 0)
  }

  // ---------------------------------------------------------------------------------------------------------- showing

  #showNew() {
    this.#timer = 0
    const received = this.#received
    this.#received = []
    // One line for all messages that were skipped among them.
    const first = received.find((each) => each.missing)
    const missing = received.reduce((sum, each) => sum + each.missing, 0)
    for (const each of received) each.missing = each === first ? missing : 0
    this.#kept.push(...received)
    const list = byId("messages")
    for (const each of received) list.prepend(...itemsOf(each))
    this.#trim(list)
    byId("tail-notice").hidden = true
  }

  #trim(list) {
    let letters = this.#kept.reduce((sum, { message }) => sum + message.payload.length, 0)
    while (this.#kept.length > 1 && (this.#kept.length > most() || letters > KEPT_LETTERS_MAX)) {
      letters -= this.#kept.shift().message.payload.length
    }
    const gaps = this.#kept.filter(({ missing }) => missing).length
    while (list.children.length > this.#kept.length + gaps) list.lastChild.remove()
  }

  #showAgain() {
    byId("messages").replaceChildren(...this.#kept.toReversed().flatMap(itemsOf))
  }

  #empty() {
    clearTimeout(this.#timer)
    this.#timer = 0
    this.#cursor = undefined
    this.#kept = []
    this.#received = []
    byId("messages").replaceChildren()
  }
}

function most() {
  return narrow.matches ? MESSAGES_MAX_NARROW : MESSAGES_MAX
}

/** The message, and below it the number of messages that were skipped before it. */
function itemsOf({ message, missing }) {
  return missing ? [itemOf(message), gapOf(missing)] : [itemOf(message)]
}

function gapOf(missing) {
  return element("li", { class: "gap" }, `${plural(missing, "message")} skipped`)
}

function itemOf(message) {
  const { partition_id: partition, header, payload, user_headers: headers } = message
  const about = ["offset", "partition", "at", "size"].map((each) => element("span", { class: each }))
  say(about[0], `offset ${exact(header.offset)}`)
  say(about[1], `partition ${partition}`)
  say(about[2], preciseTime(header.timestamp))
  say(about[3], bytes(header.payload_length))
  about[0].title = `id ${header.id}`
  const head = element("p", { class: "about" }, ...about)
  return element("li", {}, head, ...headersOf(headers), ...payloadOf(bytesOf(payload)))
}

function headersOf(headers) {
  if (!headers.length) return []
  if (typeof headers === "string") return [element("p", { class: "quiet" }, "encrypted user headers")]
  const list = element("dl", { class: "headers" })
  for (const { key, value } of headers) {
    list.append(element("div", {}, element("dt", {}, name(headerText(key))), element("dd", {}, name(headerText(value)))))
  }
  return [list]
}

function payloadOf(octets) {
  if (!octets.length) return [element("p", { class: "quiet" }, "no payload")]
  const form = byId("tail-form").value
  const box = element("pre", { tabindex: "-1" })
  const fill = (part) => {
    const { form: found, nodes } = shown(part, form, narrow.matches ? 8 : 16)
    box.className = found
    box.replaceChildren(...nodes)
  }
  if (octets.length <= SHOWN_BYTES) {
    fill(octets)
    return [box]
  }
  const text = cut(octets, SHOWN_BYTES)
  fill(text)
  const left = octets.length - text.length
  const more = element("button", { class: "link" }, `Show the remaining ${left < 1000 ? `${count(left)} bytes` : bytes(left)}`)
  more.addEventListener("click", () => (fill(octets), more.remove(), box.focus()))
  return [box, more]
}

/** Returns at most `bytesMax` bytes, without splitting a character. */
function cut(octets, bytesMax) {
  let end = bytesMax
  while (end > bytesMax - 4 && (octets[end] & 0xc0) === 0x80) end--
  return octets.subarray(0, end)
}
