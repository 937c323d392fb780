/**
 * A client of Whippet for browsers: commands and subscriptions over one WebSocket, which reconnects by itself.
 *
 *     import { connect, textOf } from "/ui/whippet.js"
 *
 *     const client = await connect({ username: "iggy", password: "..." })
 *     console.log(await client.call("get_stream", { stream: "orders" }))
 *     for await (const message of client.subscribe({ to: "topic", stream: "orders", topic: "eu", last: 10 })) {
 *       console.log(message.partition_id, message.header.offset, textOf(message.payload))
 *     }
 *
 * Commands, their members and the subscriptions are described in docs/websocket.md, by the same names. How it works:
 *
 * 1. A client is connected, or tries to connect at growing intervals, until it is closed or its sign-in is refused.
 * 2. A command in progress when the connection breaks is rejected with `disconnected`: the client cannot know whether it
 *    was executed. A command that is called without a connection waits for one.
 * 3. A subscription outlives connections. That of a topic resumes after the last message received: none is lost, none is
 *    received twice. That of a group becomes a member again; messages that it has not acknowledged are sent again, to it
 *    or to others. Rates and events cannot be resumed: those in between are lost.
 * 4. At most `window` messages of a subscription are received and not read: the server is granted one more for each that
 *    is read, so a slow reader receives slowly.
 *
 * @module
 */

const WINDOW = 100
const RETRY_MS_FIRST = 250
const RETRY_MS_MAX = 10_000
const HEARTBEAT_MS = 10_000
const TIMER_MS_MAX = 2 ** 31 - 1
/** The part of the lifetime of an access token after which it is exchanged for a new one. */
const REFRESHED_AT = 0.75
/** Errors that may not occur the next time. Any other error of a sign-in is final. */
const PASSING = new Set(["disconnected", "error", "not_ready", "service_unavailable", "transient_not_accepted"])
/** Ends after which a subscription resumes. */
const GOES_ON = new Set(["stopping", "changed", "unauthenticated"])
/** The cursor of a topic without partitions. */
const NOWHERE = "-"
const BEGINNINGS = ["from", "last", "offset", "offsets", "timestamp", "consumer", "cursor"]

/**
 * @typedef {object} Options
 * @property {string} [url] of the channel; default: `/ws` of the server that the page is from
 * @property {string} [username] with a `password`
 * @property {string} [password] kept in memory, for when the token that it returns has expired
 * @property {string} [token] instead: an access token or a personal access token
 * @property {number} [expiry] of the access token, in seconds since 1970, so that it is exchanged in time
 * @property {string | (() => string | Promise<string>)} [ticket] instead: one of `POST /tickets`. It is valid once, so only
 *   a function, which gets another one, can reconnect.
 *
 * @typedef {"connecting" | "connected" | "waiting" | "closed"} State
 *
 * @typedef {{kind: string, value: string}} HeaderPart its value in base64
 * @typedef {object} Message
 * @property {number} partition_id
 * @property {{id: number | string, offset: number, timestamp: number, payload_length: number}} header
 * @property {string} payload in base64: `bytesOf` and `textOf` decode it
 * @property {{key: HeaderPart, value: HeaderPart}[] | string} user_headers a string if the server cannot decode them
 */

/** A refusal of the server, or the end of the connection. */
export class WhippetError extends Error {
  /** @param {{code: string, reason: string, id?: number, field?: string | null}} said */
  constructor({ code, reason, id = 0, field = null }) {
    super(reason)
    this.name = "WhippetError"
    /** The name of the error, such as `stream_id_not_found`. */
    this.code = code
    /** Its number; 0 if it has none. */
    this.id = id
    /** The member of the command that was wrong, if it was one. */
    this.field = field
  }
}

/**
 * Returns a client that is signed in. Rejects if the first attempt fails; `new Client(options)` keeps trying.
 *
 * @param {Options} options
 * @returns {Promise<Client>}
 */
export async function connect(options) {
  const client = new Client(options)
  const signedIn = new Promise((resolve, reject) => {
    client.ready.then(resolve, reject)
    client.addEventListener("state", ({ detail }) => detail.state === "waiting" && reject(detail.error))
  })
  try {
    await signedIn
  } catch (error) {
    client.close()
    throw error
  }
  return client
}

// ----------------------------------------------------------------------------------------------------------- a client

/**
 * A client that is signed in, or trying to be. It dispatches `state` when that changes, with `detail.state`, the
 * `detail.error` that caused it, and `detail.retryAt`, in ms since 1970; and `token` when it has a new access token.
 */
export class Client extends EventTarget {
  /** The token that it signs in with, and its expiry; with a password, those that the login returned. @type {string | undefined} */
  token
  /** @type {number | undefined} */
  expiry
  #options
  /** @type {State} */
  #state = "connecting"
  /** The open or opening connection. @type {Link | undefined} */
  #link
  /** @type {Set<Subscription>} */
  #subscriptions = new Set()
  #connected = later()
  #refreshing
  #hasUsedTicket = false
  /** How far the local clock is ahead of the server's, in ms. */
  #ahead = 0
  #stopWaiting = () => {}

  /** @param {Options} options */
  constructor(options) {
    super()
    this.#options = options
    this.token = options.token
    this.expiry = options.expiry
    /** Resolves when it is signed in for the first time; rejects when it never will be. @type {Promise<void>} */
    this.ready = this.#connected.promise
    /** Ends the wait before the next attempt. */
    this.retry = () => this.#stopWaiting()
    globalThis.addEventListener?.("online", this.retry)
    this.#refreshLater()
    this.#stayConnected()
  }

  /** @returns {State} */
  get state() {
    return this.#state
  }

  /**
   * Executes a command, and resolves with its response.
   *
   * @param {string} cmd an operation of the HTTP API, such as `get_topics`
   * @param {object} [members]
   * @returns {Promise<any>}
   */
  async call(cmd, members = {}) {
    while (this.#state !== "connected") {
      if (this.#state === "closed") throw disconnected("The client is closed")
      await this.#connected.promise
    }
    return this.#link.ask(cmd, members)
  }

  /**
   * @param {{to: "topic" | "group" | "stats" | "events", [member: string]: any}} wanted all members of the command, except
   *   `credit`, which is granted as items are read
   * @param {{window?: number}} [options] how many items may be received and not read
   * @returns {Subscription}
   */
  subscribe(wanted, { window = WINDOW } = {}) {
    const subscription = new Subscription(wanted, window, () => this.#subscriptions.delete(subscription))
    this.#subscriptions.add(subscription)
    if (this.#state === "connected") subscription._begin(this.#link)
    if (this.#state === "closed") subscription._end(disconnected("The client is closed"))
    return subscription
  }

  /** Closes the client: subscriptions end, and waiting commands are rejected. */
  close() {
    this.#finish(null)
  }

  async #stayConnected() {
    for (let failures = 0; this.#state !== "closed"; failures++) {
      this.#become("connecting")
      let error
      try {
        await this.#open()
        failures = 0
        this.#connect()
        error = await this.#link.ended
      } catch (refused) {
        error = refused
        if (!PASSING.has(error.code)) this.#finish(error)
      }
      this.#disconnect()
      await this.#wait(error, Math.min(RETRY_MS_FIRST * 2 ** failures, RETRY_MS_MAX))
    }
  }

  async #open() {
    this.#link = new Link(await this.#url())
    if (this.#state === "closed") this.#link.end()
    await this.#link.opened
    await this.#signIn()
  }

  async #url() {
    const { url = "/ws", ticket } = this.#options
    const found = new URL(url, globalThis.location?.href)
    found.protocol = found.protocol.replace("http", "ws")
    if (ticket === undefined) return found
    if (typeof ticket === "string" && this.#hasUsedTicket) {
      throw new WhippetError({ code: "ticket_used", reason: "A ticket is valid once: pass a function that gets another" })
    }
    this.#hasUsedTicket = true
    try {
      found.searchParams.set("ticket", typeof ticket === "string" ? ticket : await ticket())
    } catch (error) {
      throw disconnected(`Cannot get a ticket: ${error.message}`)
    }
    return found
  }

  async #signIn() {
    const { username, password, ticket } = this.#options
    if (ticket !== undefined) return void (await this.#link.ask("get_session", {}))
    if (this.token !== undefined) {
      try {
        return void (await this.#link.ask("sign_in", { token: this.token }))
      } catch (error) {
        // The token may have expired; the password has not.
        if (username === undefined || PASSING.has(error.code)) throw error
      }
    }
    this.#keep(await this.#link.ask("log_in", { username, password }))
  }

  #keep({ access_token: { token, expiry } }) {
    this.token = token
    this.expiry = expiry
    this.#ahead = Date.now() - (givenAt(token) ?? Date.now())
    this.#refreshLater()
    this.dispatchEvent(new CustomEvent("token"))
  }

  #refreshLater() {
    clearTimeout(this.#refreshing)
    if (this.expiry === undefined) return
    // The issue time of a token is in whole seconds: it may be older by nearly one.
    const ms = Math.max((this.expiry * 1000 - Date.now() + this.#ahead - 1000) * REFRESHED_AT, 1000)
    const refresh = ms > TIMER_MS_MAX ? () => this.#refreshLater() : () => this.#refresh()
    this.#refreshing = setTimeout(refresh, Math.min(ms, TIMER_MS_MAX))
  }

  async #refresh() {
    try {
      this.#keep(await this.call("refresh_token", { token: this.token }))
      await this.call("sign_in", { token: this.token })
    } catch (error) {
      // The old token is valid until it expires; then the connection signs in anew, or reports why it cannot.
      if (PASSING.has(error.code)) this.#refreshLater()
    }
  }

  #connect() {
    if (this.#state === "closed") return
    this.#become("connected")
    this.#connected.resolve()
    for (const subscription of this.#subscriptions) subscription._begin(this.#link)
  }

  #disconnect() {
    this.#link?.end()
    if (this.#state === "connected") this.#connected = later()
    for (const subscription of this.#subscriptions) subscription._detach()
  }

  async #wait(error, ms) {
    if (this.#state === "closed") return
    // Clients that were disconnected together should not reconnect together.
    const jittered = ms * (0.5 + Math.random() / 2)
    this.#become("waiting", error, Date.now() + jittered)
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, jittered)
      this.#stopWaiting = () => (clearTimeout(timer), resolve())
    })
  }

  /** @param {Error | null} error null: it was closed by its user */
  #finish(error) {
    if (this.#state === "closed") return
    const ended = error ?? disconnected("The client is closed")
    this.#connected.reject(ended)
    this.#become("closed", error)
    globalThis.removeEventListener?.("online", this.retry)
    clearTimeout(this.#refreshing)
    this.#link?.end(ended.message)
    this.#stopWaiting()
    for (const subscription of [...this.#subscriptions]) subscription._end(error)
  }

  #become(state, error = null, retryAt = null) {
    this.#state = state
    this.dispatchEvent(new CustomEvent("state", { detail: { state, error, retryAt } }))
  }
}

// ------------------------------------------------------------------------------------------------------- a connection

/** One WebSocket: sends commands, and passes responses and the items of subscriptions on. */
class Link {
  /** Subscriptions by number. @type {Map<number, Subscription>} */
  subscriptions = new Map()
  #socket
  #asked = new Map()
  #last = 0
  #beats
  #silentBeats = 0
  #opened = later()
  #ended = later()

  /** @param {URL} url */
  constructor(url) {
    /** Rejects if it never opens. @type {Promise<void>} */
    this.opened = this.#opened.promise
    /** Resolves with the reason when it has ended. @type {Promise<WhippetError>} */
    this.ended = this.#ended.promise
    this.#socket = new WebSocket(url)
    this.#socket.onopen = () => this.#opened.resolve()
    this.#socket.onmessage = ({ data }) => this.#hear(decode(data))
    this.#socket.onclose = ({ code, reason }) => this.end(sentenceOf(code, reason))
    this.#beats = setInterval(() => this.#beat(), HEARTBEAT_MS)
  }

  /** @param {string} cmd @param {object} members @returns {Promise<any>} */
  async ask(cmd, members) {
    if (this.#socket.readyState !== WebSocket.OPEN) throw disconnected("The connection has ended")
    const text = JSON.stringify({ ...members, id: this.#last + 1, cmd }, whole)
    const asked = later()
    this.#asked.set(++this.#last, asked)
    this.#socket.send(text)
    return asked.promise
  }

  /** Does not wait for the server, which may be gone. */
  end(reason = "The connection was ended") {
    const error = disconnected(reason)
    clearInterval(this.#beats)
    this.#socket.onopen = this.#socket.onmessage = this.#socket.onclose = null
    this.#socket.close()
    this.#opened.reject(error)
    this.#ended.resolve(error)
    for (const asked of this.#asked.values()) asked.reject(error)
    this.#asked.clear()
  }

  #hear(said) {
    this.#silentBeats = 0
    if (said.sub !== undefined) return this.subscriptions.get(said.sub)?._hear(said)
    const asked = this.#asked.get(said.id)
    this.#asked.delete(said.id)
    if (said.error) asked?.reject(new WhippetError(said.error))
    else asked?.resolve(said.ok)
  }

  /** Detects a server that is gone: it does not respond to a ping. */
  #beat() {
    this.#silentBeats++
    if (this.#silentBeats === 2) this.ask("ping", {}).catch(ignored)
    if (this.#silentBeats > 2) this.end("The server no longer responds")
  }
}

// ----------------------------------------------------------------------------------------------------- a subscription

/**
 * An async iterable of messages of a topic or a group, samples of rates, or events. Leaving the loop ends the
 * subscription. If the server ends it, the loop throws, after all items received before.
 */
export class Subscription {
  /** Number of messages, samples or events that were skipped before the last item read. */
  skipped = 0
  /** Of a group: the latest assignment of partitions. @type {any} */
  assigned = null
  #wanted
  #window
  #forget
  /** @type {Link | undefined} */
  #link
  #number = 0
  /** @type {{item: any, skipped: number, cursor?: string}[]} */
  #queue = []
  #readers = []
  /** Items read whose credit was not granted again yet. */
  #owed = 0
  #isOver = false
  #failure = null
  /** The position after all items received. @type {string | undefined} */
  #reached
  /** The position after all items read, by partition: the offset, and the epoch of the partition, which a purge ends. */
  #read = new Map()
  #begun = later()

  /** @package */
  constructor(wanted, window, forget) {
    this.#wanted = wanted
    this.#window = window
    this.#forget = forget
    /** Resolves when the server has started it: everything sent from then on is received. @type {Promise<void>} */
    this.ready = this.#begun.promise
  }

  /** Of a topic: the position after the last message read, to resume there later. @returns {string | undefined} */
  get cursor() {
    return this.#read.size ? [...this.#read].map(([partition, place]) => [partition, ...place].join(":")).join() : undefined
  }

  [Symbol.asyncIterator]() {
    return this
  }

  /** @returns {Promise<IteratorResult<any>>} */
  async next() {
    if (this.#queue.length) return this.#take()
    if (this.#failure) {
      const error = this.#failure
      this.#failure = null
      throw error
    }
    if (this.#isOver) return { done: true, value: undefined }
    const reader = later()
    this.#readers.push(reader)
    return reader.promise
  }

  /** @returns {Promise<IteratorResult<any>>} */
  async return() {
    this.close()
    return { done: true, value: undefined }
  }

  /** Ends it. Items that were not read are dropped. */
  close() {
    this.#queue = []
    this.#failure = null
    this._end(null)
  }

  /**
   * Of a group: acknowledges all messages of the partition up to this one.
   *
   * @param {Message} message
   */
  async ack({ partition_id, header: { offset } }) {
    await this.#ask("ack", { partition_id, offset })
  }

  /** @package @param {Link} link */
  async _begin(link) {
    const wanted = { ...this.#wanted, credit: this.#window - this.#queue.length }
    if (this.#reached !== undefined) {
      for (const name of BEGINNINGS) delete wanted[name]
      wanted.cursor = this.#reached
    }
    this.#link = link
    this.#owed = 0
    try {
      const { sub, cursor } = await link.ask("subscribe", wanted)
      if (this.#link !== link) return
      this.#number = sub
      link.subscriptions.set(sub, this)
      if (this.#isOver) return this.#unsubscribe()
      if (this.#reached === undefined && cursor !== undefined) this.#pass((this.#reached = cursor))
      this.#begun.resolve()
      this.#grant()
    } catch (error) {
      if (error.code !== "disconnected") this._end(error)
    }
  }

  /** @package */
  _detach() {
    this.#link = undefined
    this.#number = 0
    // Messages that were not acknowledged are sent again, perhaps to another member.
    if (this.#wanted.to === "group" && this.#wanted.ack !== "auto") this.#queue = []
  }

  /** @package */
  _hear(said) {
    if (said.end) return this.#hearEnd(said.end)
    if (said.assigned) return void (this.assigned = said.assigned)
    const items = said.messages ?? [said.stats ?? said.event]
    const entries = items.map((item) => ({ item, skipped: 0 }))
    entries[0].skipped = totalOf(said.skipped)
    entries[entries.length - 1].cursor = said.cursor
    this.#reached = said.cursor ?? this.#reached
    this.#queue.push(...entries)
    while (this.#readers.length && this.#queue.length) this.#readers.shift().resolve(this.#take())
  }

  /** @package @param {Error | null} error null: it was ended by its user */
  _end(error) {
    if (this.#isOver) return
    this.#isOver = true
    this.#forget()
    this.#unsubscribe()
    this.#failure = error
    this.#begun.reject(error ?? disconnected("The subscription was closed"))
    const [first, ...others] = this.#readers
    first?.resolve(this.next())
    for (const each of others) each.resolve({ done: true, value: undefined })
  }

  #hearEnd(end) {
    const link = this.#link
    link.subscriptions.delete(this.#number)
    this.#number = 0
    this.#reached = end.cursor ?? this.#reached
    if (!GOES_ON.has(end.code)) this._end(new WhippetError(end))
    else if (end.code === "changed") this._begin(link)
    else if (end.code === "unauthenticated") link.end(end.reason)
  }

  #take() {
    const { item, skipped, cursor } = this.#queue.shift()
    this.skipped += skipped
    if (this.#wanted.to === "topic") {
      const partition = String(item.partition_id)
      const [, ...epoch] = this.#read.get(partition) ?? []
      this.#read.set(partition, [item.header.offset + 1, ...epoch])
    }
    if (cursor) this.#pass(cursor)
    this.#owed++
    this.#grant()
    return { done: false, value: item }
  }

  /** @param {string} cursor */
  #pass(cursor) {
    if (cursor === NOWHERE) return
    for (const each of cursor.split(",")) {
      const [partition, offset, ...epoch] = each.split(":")
      this.#read.set(partition, [Number(offset), ...epoch])
    }
  }

  /** Grants in batches, but so early that a quick reader never waits. */
  #grant() {
    if (!this.#number || this.#owed * 2 < this.#window) return
    this.#ask("grant", { credit: this.#owed }).catch(ignored)
    this.#owed = 0
  }

  #unsubscribe() {
    if (!this.#number) return
    this.#link.subscriptions.delete(this.#number)
    this.#ask("unsubscribe", {}).catch(ignored)
    this.#number = 0
  }

  async #ask(cmd, members) {
    if (!this.#number) throw disconnected("The subscription has no connection now")
    return this.#link.ask(cmd, { ...members, sub: this.#number })
  }
}

// -------------------------------------------------------------------------------------------------------------- bytes

/** @param {string} base64 @returns {Uint8Array} */
export function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0))
}

/** Invalid UTF-8 becomes U+FFFD. @param {string} base64 @returns {string} */
export function textOf(base64) {
  return new TextDecoder().decode(bytesOf(base64))
}

/** Encodes a payload. @param {string | Uint8Array} content @returns {string} */
export function base64Of(content) {
  const bytes = typeof content === "string" ? new TextEncoder().encode(content) : content
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""))
}

/** A lone surrogate is not valid JSON: the server could not even read the id of the command to refuse it. */
function whole(name, value) {
  if (typeof value !== "string" || !/\p{Surrogate}/u.test(value)) return value
  throw new WhippetError({ code: "bad_request", id: 400, reason: `\`${name}\` contains a lone surrogate`, field: name })
}

/** Parses JSON; an integer that JavaScript cannot represent, such as the id of a message, becomes a string of its digits. */
function decode(text) {
  // Quotes within strings are escaped, so this only finds members.
  const exact = text.replace(/"(\w+)":(\d{16,})/g, (whole, name, digits) =>
    Number.isSafeInteger(Number(digits)) ? whole : `"${name}":"${digits}"`,
  )
  return JSON.parse(exact)
}

/** @param {number | Record<string, number>} skipped by partition, or in total */
function totalOf(skipped = 0) {
  return typeof skipped === "number" ? skipped : Object.values(skipped).reduce((sum, each) => sum + each, 0)
}

/** When an access token was issued, by the clock of the server, in ms since 1970. @param {string} token */
function givenAt(token) {
  try {
    return JSON.parse(atob(token.split(".")[1].replace(/-/g, "+").replace(/_/g, "/"))).iat * 1000
  } catch {
    return undefined
  }
}

function disconnected(reason) {
  return new WhippetError({ code: "disconnected", reason })
}

function sentenceOf(code, reason) {
  // 1006: it was never established, or broke without a close frame.
  if (code === 1006) return "The server cannot be reached"
  if (code === 1001) return "The server has stopped"
  return `The connection was closed: ${reason || "no reason given"} (${code})`
}

/** For errors that the end of the connection reports as well. */
function ignored() {}

/** A promise that others settle. Its rejection may go unhandled. */
function later() {
  let resolve, reject
  const promise = new Promise((...settle) => ([resolve, reject] = settle))
  promise.catch(ignored)
  return { promise, resolve, reject }
}
