/**
 * The page: handles signing in and the connection, and passes what arrives to the parts. All figures come from
 * subscriptions of one client; without a connection, the page shows that, and how old its figures are.
 *
 * @module
 */

import { byId, name, notice, say } from "/ui/elements.js"
import { Events } from "/ui/events.js"
import { Groups } from "/ui/groups.js"
import { time } from "/ui/numbers.js"
import { Storage } from "/ui/storage.js"
import { Tail } from "/ui/tail.js"
import { placesOf, Topics } from "/ui/topics.js"
import { Client, connect } from "/ui/whippet.js"

const KEPT_AS = "whippet.session"
const WORDS = { connecting: "Connecting", connected: "Live", waiting: "Not connected", closed: "Signed out" }

/** @type {Client | null} */
let client = null
let sampledAt = 0
/** The topic that is shown; also in the address of the page. @type {{stream: string, topic: string} | null} */
let chosen = null

const wide = matchMedia("(min-width: 1000px)")
const topics = new Topics(chooseByHand)
const groups = new Groups()
const storage = new Storage()
const events = new Events()
const tail = new Tail(announce)

// ------------------------------------------------------------------------------------------------------------ sign in

byId("sign-in-other").addEventListener("click", () => {
  const withToken = byId("with-token").hidden
  byId("with-token").hidden = !withToken
  byId("with-password").hidden = withToken
  byId("token").required = withToken
  byId("username").required = byId("password").required = !withToken
  say(byId("sign-in-other"), withToken ? "Sign in with a password instead" : "Sign in with a token instead")
  byId(withToken ? "token" : "username").focus()
})

byId("sign-in-form").addEventListener("submit", async (event) => {
  event.preventDefault()
  const withToken = byId("with-password").hidden
  const username = byId("username").value
  const credentials = withToken ? { token: byId("token").value.trim() } : { username, password: byId("password").value }
  byId("sign-in-button").disabled = true
  notice(byId("sign-in-problem"), "")
  try {
    enter(await connect(credentials), withToken ? "" : username)
  } catch (error) {
    notice(byId("sign-in-problem"), sentenceOf(error))
    byId(withToken ? "token" : "password").select()
  } finally {
    byId("password").value = byId("token").value = ""
    byId("sign-in-button").disabled = false
  }
})

byId("sign-out").addEventListener("click", async () => {
  const leaving = client
  if (leaving.state === "connected") await leaving.call("log_out").catch(() => {})
  leave("")
})

function sentenceOf(error) {
  if (error.code === "unauthenticated") return "This token is invalid or has expired."
  return sentence(error.message)
}

/** @param {string} reason in the words of the server */
function sentence(reason) {
  return `${reason[0].toUpperCase()}${reason.slice(1).replace(/\.$/, "")}.`
}

function askToSignIn(problem) {
  byId("dashboard").hidden = true
  byId("sign-in").hidden = false
  say(byId("sign-in-where"), location.host)
  notice(byId("sign-in-problem"), problem)
  byId("username").focus()
}

// ------------------------------------------------------------------------------------------------------------ session

function kept() {
  try {
    return JSON.parse(sessionStorage.getItem(KEPT_AS) ?? "null")
  } catch {
    return null
  }
}

function keep(session) {
  sessionStorage.setItem(KEPT_AS, JSON.stringify(session))
}

/** @param {Client} signedIn @param {string} username */
function enter(signedIn, username) {
  client = signedIn
  const session = () => ({ username, token: signedIn.token, expiry: signedIn.expiry })
  keep(session())
  signedIn.addEventListener("token", () => keep(session()))
  signedIn.addEventListener("state", ({ detail }) => signedIn === client && showState(detail))
  byId("sign-in").hidden = true
  byId("dashboard").hidden = false
  say(byId("where"), location.host)
  say(byId("user"), username)
  showState({ state: signedIn.state })
  tail.use(signedIn)
  openFromAddress()
  watch({})
  byId("title").focus({ preventScroll: true })
}

/** @param {string} problem the reason, unless the user has signed out */
function leave(problem) {
  const left = client
  client = null
  left.close()
  clearInterval(countdown)
  byId("banner").hidden = true
  announce("")
  document.title = "Whippet"
  sessionStorage.removeItem(KEPT_AS)
  for (const part of [topics, groups, storage, events, tail]) part.clear()
  byId("by-name").hidden = true
  chosen = null
  askToSignIn(problem)
}

// --------------------------------------------------------------------------------------------------------- connection

let countdown = 0

/** @param {{state: string, error?: any, retryAt?: number}} detail */
function showState({ state, error, retryAt }) {
  clearInterval(countdown)
  if (state === "closed") return leave(`${sentence(error.message)} Sign in again.`)
  const wasAway = !byId("banner").hidden
  byId("connection").dataset.state = state
  say(byId("connection"), WORDS[state])
  byId("page").classList.toggle("stale", state !== "connected")
  document.title = state === "waiting" ? "Not connected – Whippet" : "Whippet"
  if (state === "connected") {
    byId("banner").hidden = true
    if (wasAway) announce("Reconnected")
    if (wasAway) events.miss("events while there was no connection")
  }
  if (state === "waiting") {
    const since = sampledAt ? ` The figures are from ${time(sampledAt)}.` : ""
    say(byId("banner-text"), `${sentence(error.message)}${since}`)
    byId("banner").hidden = false
    // Not every screen reader announces an element that appears together with its text.
    if (!wasAway) announce(`Not connected. ${sentence(error.message)}`)
    countDown(retryAt)
    countdown = setInterval(() => countDown(retryAt), 1000)
  }
}

function countDown(retryAt) {
  const seconds = Math.max(Math.ceil((retryAt - Date.now()) / 1000), 0)
  say(byId("retry"), seconds ? `Retry now (or in ${seconds} s)` : "Connecting")
}

byId("retry").addEventListener("click", () => client.retry())

function announce(sentence) {
  say(byId("announcer"), sentence)
}

// ------------------------------------------------------------------------------------------------------------ figures

/** The subscriptions to everything, or to one topic. @type {import("/ui/whippet.js").Subscription[]} */
let watched = []

/** @param {{stream?: string, topic?: string}} scope */
function watch(scope) {
  for (const each of watched) each.close()
  const stats = client.subscribe({ to: "stats", ...scope }, { window: 2 })
  const news = client.subscribe({ to: "events", ...scope })
  watched = [stats, news]
  hear(stats, (sample) => show(sampleOf(sample, scope)), (error) => refuse(error, scope))
  hear(news, (event) => events.show(event), (error) => events.miss(`The events have ended: ${error.message}`))
}

async function hear(subscription, take, fail) {
  try {
    for await (const item of subscription) take(item)
  } catch (error) {
    if (client?.state === "connected") fail(error)
  }
}

/** Puts the sample of one topic into the form of all. @param {any} sample @param {{stream?: string}} scope */
function sampleOf(sample, { stream }) {
  if (!sample.topic) return sample
  return { ...sample, streams: [{ ...sample.topic, id: null, name: stream, topics: [sample.topic] }] }
}

function show(sample) {
  sampledAt = sample.at
  topics.show(sample)
  groups.show(sample)
  storage.show(sample)
  const place = chosen && placesOf(sample).find(isChosen)
  if (place) tail.describe(place.topic)
}

function refuse(error, scope) {
  byId("by-name").hidden = false
  // What was shown before is no longer up to date.
  topics.clear()
  topics.mark(isChosen)
  groups.clear()
  storage.clear()
  notice(byId("groups-notice"), "No figures.")
  const isLimited = error.code === "unauthorized" && scope.topic === undefined
  const limited = "You have no permission to read all streams. Open a topic by its name."
  notice(byId("topics-notice"), isLimited ? limited : sentenceOf(error))
  if (isLimited && chosen) watch(chosen)
}

byId("by-name").addEventListener("submit", (event) => {
  event.preventDefault()
  const [stream, topic] = ["stream", "topic"].map((each) => byId(`by-name-${each}`).value.trim())
  topics.clear()
  choose(stream, topic)
  watch({ stream, topic })
})

// -------------------------------------------------------------------------------------------------- the chosen topic

/** `stream` and `topic` are names, or ids of those whose name is a number. */
function choose(stream, topic) {
  chosen = { stream, topic }
  history.replaceState(null, "", `#${encodeURIComponent(stream)}/${encodeURIComponent(topic)}`)
  topics.mark(isChosen)
  tail.open(chosen, [name(stream), " / ", name(topic)])
}

function isChosen(place) {
  return chosen !== null && keyOf(place.stream) === chosen.stream && keyOf(place.topic) === chosen.topic
}

/** A name that looks like a number would be taken for an id. */
function keyOf(thing) {
  return /^\d+$/.test(thing.name) && thing.id !== null ? String(thing.id) : thing.name
}

function openFromAddress() {
  const [stream, topic] = location.hash.slice(1).split("/").map(decoded)
  if (stream && topic) choose(stream, topic)
}

function decoded(text) {
  try {
    return decodeURIComponent(text)
  } catch {
    return ""
  }
}

function chooseByHand(place) {
  choose(keyOf(place.stream), keyOf(place.topic))
  // On narrow screens the messages are below the list.
  if (!wide.matches) byId("tail-title").focus()
}

byId("skip").addEventListener("click", (event) => {
  event.preventDefault()
  byId("tail-title").focus()
})

const session = kept()
if (session?.token) enter(new Client({ token: session.token, expiry: session.expiry }), session.username)
else askToSignIn("")
