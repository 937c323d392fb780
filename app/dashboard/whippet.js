/**
 * A client of Whippet for browsers: commands and subscriptions over one WebSocket that comes back by itself.
 *
 *     import { connect, textOf } from "/ui/whippet.js"
 *
 *     const client = await connect({ username: "iggy", password: "..." })
 *     console.log(await client.call("get_stream", { stream: "orders" }))
 *     for await (const message of client.subscribe({ to: "topic", stream: "orders", topic: "eu", last: 10 })) {
 *       console.log(message.partition_id, message.header.offset, textOf(message.payload))
 *     }
 *
 * Commands, their members and what can be subscribed to are in docs/websocket.md, by the same names. How it works:
 *
 * 1. A client is connected, or tries to be, at growing distances, until it is closed or its sign-in is refused.
 * 2. A command that was under way when the connection broke is refused with `disconnected`: nobody here knows whether it
 *    was carried out. A command that is called while there is no connection waits for one.
 * 3. A subscription outlives connections. That of a topic goes on behind the last message that came: none is lost, none
 *    comes twice. That of a group becomes a member again; what it has not acknowledged comes again, to it or to others.
 *    Rates and events have no place to go on at: those of the meantime are not told.
 * 4. What came and was not read yet is at most the `window` of its subscription: the server is granted one more for each
 *    that is read. Who reads slowly is sent slowly.
 *
 * @module
 */

const WINDOW = 100
const RETRY_MS_FIRST = 250
const RETRY_MS_MAX = 10_000
const HEARTBEAT_MS = 10_000
const TIMER_MS_MAX = 2 ** 31 - 1
/** Of the life of an access token, after which it is exchanged for a new one. */
const REFRESHED_AT = 0.75
/** Errors that may be gone the next time. Any other one that a sign-in is refused with is final. */
const PASSING = new Set(["disconnected", "error", "not_ready", "service_unavailable", "transient_not_accepted"])
/** Ends of a subscription behind which it goes on. */
const GOES_ON = new Set(["stopping", "changed", "unauthenticated"])
/** The cursor of a topic without partitions. */
const NOWHERE = "-"
const BEGINNINGS = ["from", "last", "offset", "offsets", "timestamp", "consumer", "cursor"]

/**
 * @typedef {object} Options
 * @property {string} [url] of the channel; without it `/ws` of the server that the page is from
 * @property {string} [username] with a `password`
 * @property {string} [password] stays in memory, for when the token that it gives has ended
 * @property {string} [token] instead: an access token or a personal access token
 * @property {number} [expiry] of the access token, in seconds since 1970, so that it is exchanged in time
 * @property {string | (() => string | Promise<string>)} [ticket] instead: one of `POST /tickets`. It is good once, so only
 *   a function, which gets another one, can come back after a disconnect.
 *
 * @typedef {"connecting" | "connected" | "waiting" | "closed"} State
 *
 * @typedef {{kind: string, value: string}} HeaderPart its value in base64
 * @typedef {object} Message
 * @property {number} partition_id
 * @property {{id: number | string, offset: number, timestamp: number, payload_length: number}} header
 * @property {string} payload in base64: `bytesOf` and `textOf` undo that
 * @property {{key: HeaderPart, value: HeaderPart}[] | string} user_headers a text where the server cannot read them
 */

/** What the server has refused, or what became of the connection. */
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
 * A client that is signed in. Rejects if the first attempt fails; `new Client(options)` goes on trying.
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
 * Signed in, or trying to be. Says `state` when that changes, with `detail.state`, the `detail.error` that it is because
 * of, and `detail.retryAt`, in ms since 1970; and `token` when it has got another access token.
 */
export class Client extends EventTarget {
  /** That it signs in with, and its end: with a password those that were given for it. @type {string | undefined} */
  token
  /** @type {number | undefined} */
  expiry
  #options
  /** @type {State} */
  #state = "connecting"
  /** That is open, or opening. @type {Link | undefined} */
  #link
  /** @type {Set<Subscription>} */
  #subscriptions = new Set()
  #connected = later()
  #refreshing
  #hasUsedTicket = false
  /** How far the clock here is ahead of the server's, in ms. */
  #ahead = 0
  #stopWaiting = () => {}

  /** @param {Options} options */
  constructor(options) {
    super()
    this.#options = options
    this.token = options.token
    this.expiry = options.expiry
    /** Resolved when it is signed in for the first time; rejected when it never will be. @type {Promise<void>} */
    this.ready = this.#connected.promise
    /** Now, while it waits to try again. */
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
   * Has a command carried out, and resolves with its answer.
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
   * @param {{to: "topic" | "group" | "stats" | "events", [member: string]: any}} wanted all that the command takes, but
   *   `credit`, which is granted as items are read
   * @param {{window?: number}} [options] how many may have come and wait to be read
   * @returns {Subscription}
   */
  subscribe(wanted, { window = WINDOW } = {}) {
    const subscription = new Subscription(wanted, window, () => this.#subscriptions.delete(subscription))
    this.#subscriptions.add(subscription)
    if (this.#state === "connected") subscription._begin(this.#link)
    if (this.#state === "closed") subscription._end(disconnected("The client is closed"))
    return subscription
  }

  /** For good: subscriptions end, and commands that wait are refused. */
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
      throw new WhippetError({ code: "ticket_used", reason: "A ticket is good once: give a function that gets another" })
    }
    this.#hasUsedTicket = true
    try {
      found.searchParams.set("ticket", typeof ticket === "string" ? ticket : await ticket())
    } catch (error) {
      throw disconnected(`There is no ticket: ${error.message}`)
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
        // The token may have ended; the password has not.
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
    // A token says in whole seconds when it was given: it may be older than that by nearly one.
    const ms = Math.max((this.expiry * 1000 - Date.now() + this.#ahead - 1000) * REFRESHED_AT, 1000)
    const refresh = ms > TIMER_MS_MAX ? () => this.#refreshLater() : () => this.#refresh()
    this.#refreshing = setTimeout(refresh, Math.min(ms, TIMER_MS_MAX))
  }

  async #refresh() {
    try {
      this.#keep(await this.call("refresh_token", { token: this.token }))
      await this.call("sign_in", { token: this.token })
    } catch (error) {
      // The old one is good until it ends; then the connection signs in anew, or says why it cannot.
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
    // Those who were cut off together should not come back together.
    const jittered = ms * (0.5 + Math.random() / 2)
    this.#become("waiting", error, Date.now() + jittered)
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, jittered)
      this.#stopWaiting = () => (clearTimeout(timer), resolve())
    })
  }

  /** @param {Error | null} error none: it was told to */
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

/** One WebSocket, as long as it lasts: what is asked and answered, and what is said of subscriptions. */
class Link {
  /** By number, those that hear what is said of them. @type {Map<number, Subscription>} */
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
    /** Rejected if it never opens. @type {Promise<void>} */
    this.opened = this.#opened.promise
    /** Resolved with the error that tells why, when it is over. @type {Promise<WhippetError>} */
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

  /** Does not wait for the other side, which may not be there any more. */
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

  /** A server that has gone without a word is noticed by its silence when it is asked. */
  #beat() {
    this.#silentBeats++
    if (this.#silentBeats === 2) this.ask("ping", {}).catch(ignored)
    if (this.#silentBeats > 2) this.end("The server does not answer any more")
  }
}

// ----------------------------------------------------------------------------------------------------- a subscription

/**
 * What is said of one, for `for await`: messages of a topic or a group, samples of rates, events. A loop that ends ends
 * the subscription. An end that nobody asked for is thrown, behind all that came before it.
 */
export class Subscription {
  /** How many messages, samples or events were left out before what was read last. */
  skipped = 0
  /** Of a group: what the server has said last of the partitions that are its own. @type {any} */
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
  /** Read, and not granted again yet. */
  #owed = 0
  #isOver = false
  #failure = null
  /** Behind all that came. @type {string | undefined} */
  #reached
  /** Behind all that was read, by partition. */
  #read = new Map()
  #begun = later()

  /** @package */
  constructor(wanted, window, forget) {
    this.#wanted = wanted
    this.#window = window
    this.#forget = forget
    /** Resolved when the server has begun it: what is sent from then on will come. @type {Promise<void>} */
    this.ready = this.#begun.promise
  }

  /** Of a topic: behind the message that was read last, to go on there another time. @returns {string | undefined} */
  get cursor() {
    return this.#read.size ? [...this.#read].map(([partition, offset]) => `${partition}:${offset}`).join() : undefined
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

  /** Ends it. What came and was not read is dropped. */
  close() {
    this.#queue = []
    this.#failure = null
    this._end(null)
  }

  /**
   * Of a group: everything up to this message of its partition is done with.
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
    // What was not acknowledged comes again, perhaps to another member.
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

  /** @package @param {Error | null} error none: somebody has asked for it */
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
    if (this.#wanted.to === "topic") this.#read.set(String(item.partition_id), item.header.offset + 1)
    if (cursor) this.#pass(cursor)
    this.#owed++
    this.#grant()
    return { done: false, value: item }
  }

  /** @param {string} cursor */
  #pass(cursor) {
    if (cursor === NOWHERE) return
    for (const each of cursor.split(",")) {
      const [partition, offset] = each.split(":")
      this.#read.set(partition, Number(offset))
    }
  }

  /** Not one by one, but so early that a quick reader never waits. */
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

// ------------------------------------------------------------------------------------------------------------- octets

/** @param {string} base64 @returns {Uint8Array} */
export function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0))
}

/** What is not UTF-8 becomes U+FFFD. @param {string} base64 @returns {string} */
export function textOf(base64) {
  return new TextDecoder().decode(bytesOf(base64))
}

/** For a payload that is to be sent. @param {string | Uint8Array} content @returns {string} */
export function base64Of(content) {
  const bytes = typeof content === "string" ? new TextEncoder().encode(content) : content
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""))
}

/** Half of a letter is not JSON: the server could not even read the id of the command to refuse it by. */
function whole(name, value) {
  if (typeof value !== "string" || !/\p{Surrogate}/u.test(value)) return value
  throw new WhippetError({ code: "bad_request", id: 400, reason: `\`${name}\` has half of a letter in it`, field: name })
}

/** JSON, but a number that JavaScript cannot hold, such as the id of a message, becomes a text of its digits. */
function decode(text) {
  // Within a text every quote is escaped, so this only finds members.
  const exact = text.replace(/"(\w+)":(\d{16,})/g, (whole, name, digits) =>
    Number.isSafeInteger(Number(digits)) ? whole : `"${name}":"${digits}"`,
  )
  return JSON.parse(exact)
}

/** @param {number | Record<string, number>} skipped by partition, or all */
function totalOf(skipped = 0) {
  return typeof skipped === "number" ? skipped : Object.values(skipped).reduce((sum, each) => sum + each, 0)
}

/** When an access token was made, by the clock of the server, in ms since 1970. @param {string} token */
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
  // 1006: it did not come about, or broke without a word.
  if (code === 1006) return "The server cannot be reached"
  if (code === 1001) return "The server has stopped"
  return `The connection was closed: ${reason || "it did not say why"} (${code})`
}

/** Where a connection that ends says enough. */
function ignored() {}

/** A promise for others to settle. Nobody needs to hear that it was rejected. */
function later() {
  let resolve, reject
  const promise = new Promise((...settle) => ([resolve, reject] = settle))
  promise.catch(ignored)
  return { promise, resolve, reject }
}
