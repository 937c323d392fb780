/**
 * The page: handles signing in and the connection, and shows the view that the address names. All data comes over the
 * channel of one client; without a connection, the page shows that, and how old its figures are.
 *
 * @module
 */

import { Clients } from "/ui/clients.js"
import { sentenceOf } from "/ui/dialog.js"
import { byId, notice, say } from "/ui/elements.js"
import { Figures } from "/ui/figures.js"
import { Groups } from "/ui/groups.js"
import { listenToKeys } from "/ui/keys.js"
import { time } from "/ui/numbers.js"
import { Overview } from "/ui/overview.js"
import { placeOf } from "/ui/router.js"
import { Server } from "/ui/server.js"
import { Streams } from "/ui/streams.js"
import { Topic } from "/ui/topic.js"
import { Users } from "/ui/users.js"
import { Client, connect } from "/ui/whippet.js"

const KEPT_AS = "whippet.session"
const WORDS = { connecting: "Connecting", connected: "Live", waiting: "Not connected", closed: "Signed out" }

/** Views by the first part of the address. */
const VIEWS = { "": Overview, streams: Streams, groups: Groups, users: Users, clients: Clients, server: Server }

/** @type {Client | null} */
let client = null
const figures = new Figures()
/** The view that is shown, and what identifies it. @type {{view: any, key: string} | null} */
let shown = null

/**
 * What views work with.
 *
 * @typedef {{client: Client, figures: Figures, username: string, announce: (sentence: string) => void}} Context
 */
/** @type {Context | null} */
let context = null

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
    notice(byId("sign-in-problem"), refusalOf(error))
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

function refusalOf(error) {
  return error.code === "unauthenticated" ? "This token is invalid or has expired." : sentenceOf(error)
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
  context = { client: signedIn, figures, username, announce }
  figures.use(signedIn)
  open()
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
  isAway = false
  document.title = "Whippet"
  sessionStorage.removeItem(KEPT_AS)
  for (const each of document.querySelectorAll("dialog")) each.close()
  close()
  figures.clear()
  context = null
  askToSignIn(problem)
}

// --------------------------------------------------------------------------------------------------------- connection

let countdown = 0
let isAway = false

/** @param {{state: string, error?: any, retryAt?: number}} detail */
function showState({ state, error, retryAt }) {
  clearInterval(countdown)
  if (state === "closed") return leave(`${sentenceOf(error)} Sign in again.`)
  const wasAway = !byId("banner").hidden
  byId("connection").dataset.state = state
  say(byId("connection"), WORDS[state])
  byId("view").classList.toggle("stale", state !== "connected")
  isAway = state === "waiting"
  entitle()
  if (state === "connected") {
    byId("banner").hidden = true
    if (wasAway) announce("Reconnected")
    if (wasAway) figures.miss("events while there was no connection")
  }
  if (state === "waiting") {
    const since = figures.sample ? ` The figures are from ${time(figures.sample.at)}.` : ""
    say(byId("banner-text"), `${sentenceOf(error)}${since}`)
    byId("banner").hidden = false
    // Not every screen reader announces an element that appears together with its text.
    if (!wasAway) announce(`Not connected. ${sentenceOf(error)}`)
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

// ------------------------------------------------------------------------------------------------------------- views

/** Shows the view of the address: another one, or the same with other parameters. */
function open() {
  const place = placeOf(location.hash)
  const [first = "", , topic] = place.path
  const View = first === "streams" && topic !== undefined ? Topic : (VIEWS[first] ?? Overview)
  const key = JSON.stringify([View.name, View === Topic ? Topic.keyOf(place) : ""])
  if (shown?.key === key) shown.view.change?.(place)
  else {
    close()
    const view = new /** @type {any} */ (View)(context, place)
    shown = { view, key }
    byId("view").replaceChildren(view.element)
    byId("view").dataset.view = first || "overview"
    if (figures.sample) view.show?.(figures.sample)
    scrollTo(0, 0)
    if (view.focus) view.focus()
    else byId("view").focus({ preventScroll: true })
  }
  for (const link of byId("views").querySelectorAll("a")) {
    if (placeOf(link.hash).path.join() === first) link.setAttribute("aria-current", "page")
    else link.removeAttribute("aria-current")
  }
  entitle()
}

function close() {
  shown?.view.leave?.()
  shown = null
  byId("view").replaceChildren()
}

function entitle() {
  const view = shown?.view.title ? `${shown.view.title} – Whippet` : "Whippet"
  document.title = isAway ? "Not connected – Whippet" : view
}

addEventListener("hashchange", () => context && open())
figures.addEventListener("sample", ({ detail }) => shown?.view.show?.(detail))
figures.addEventListener("event", () => shown?.view.hearEvent?.())
figures.addEventListener("refused", ({ detail }) => {
  shown?.view.refuse?.(detail.error)
  // In place of everything, the topic that is shown.
  const [first, stream, topic] = placeOf(location.hash).path
  if (first === "streams" && topic !== undefined && !("topic" in detail.scope)) figures.narrow({ stream, topic })
})

byId("skip").addEventListener("click", (event) => {
  event.preventDefault()
  byId("view").focus()
})

listenToKeys()

const session = kept()
if (session?.token) enter(new Client({ token: session.token, expiry: session.expiry }), session.username)
else askToSignIn("")
