/**
 * The clients that are connected.
 *
 * @module
 */

import { sentenceOf } from "/ui/dialog.js"
import { card, element, labelled, name, notice, table } from "/ui/elements.js"
import { count, plural } from "/ui/numbers.js"

const REFRESHED_EVERY_MS = 3000
const ROWS_MAX = 200

export class Clients {
  title = "Clients"
  #context
  #timer = 0
  #isOver = false
  #clients = []
  /** Names by user id, where the user may read them. @type {Map<number, string>} */
  #users = new Map()
  #notice = element("p", { class: "notice" }, "Loading.")
  #more = element("p", { class: "more quiet", hidden: "" })
  #filter = element("input", { type: "search", placeholder: "Filter", autocomplete: "off", spellcheck: "false", "data-search": "" })
  #table = table("Clients", [
    ["Address", ""],
    ["Transport", ""],
    ["User", ""],
    ["Groups", "number"],
    ["Id", "number wide"],
  ])

  /** @param {import("/ui/page.js").Context} context */
  constructor(context) {
    this.#context = context
    this.#table.hidden = true
    this.element = card("Clients", this.#notice, element("div", { class: "scrolled" }, this.#table), this.#more)
    this.element.querySelector(".head").append(labelled("Show only clients that contain", this.#filter, "only-control"))
    this.#filter.addEventListener("input", () => this.#show())
    context.client.call("get_users", {}).then(
      (users) => (this.#users = new Map(users.map(({ id, username }) => [id, username]))),
      () => {},
    )
    this.#read()
  }

  leave() {
    this.#isOver = true
    clearTimeout(this.#timer)
  }

  async #read() {
    try {
      this.#clients = await this.#context.client.call("get_clients", {})
      if (this.#isOver) return
      this.#show()
    } catch (error) {
      if (this.#isOver) return
      notice(this.#notice, sentenceOf(error))
      if (error.code === "unauthorized") return
    }
    this.#timer = setTimeout(() => this.#read(), REFRESHED_EVERY_MS)
  }

  #show() {
    const wanted = this.#filter.value.trim().toLowerCase()
    const named = this.#clients.map((each) => ({ ...each, user: each.user_id === null ? "not signed in" : (this.#users.get(each.user_id) ?? `user ${each.user_id}`) }))
    const fitting = named.filter(({ address, transport, user }) => `${address} ${transport} ${user}`.toLowerCase().includes(wanted))
    const rows = fitting.slice(0, ROWS_MAX).map(({ address, transport, user, consumer_groups_count: groups, client_id: id }) =>
      element(
        "tr",
        {},
        element("th", { scope: "row" }, name(address)),
        element("td", {}, transport.toUpperCase()),
        element("td", {}, name(user)),
        element("td", { class: "number" }, count(groups)),
        element("td", { class: "number wide" }, String(id)),
      ),
    )
    this.#table.tBodies[0].replaceChildren(...rows)
    this.#table.hidden = !rows.length
    notice(this.#notice, rows.length ? "" : wanted ? "No client matches the filter." : "No clients are connected. Requests over HTTP are not listed.")
    const left = fitting.length - rows.length
    notice(this.#more, left > 0 ? `and ${plural(left, "more client")}: filter to see them` : "")
  }
}
