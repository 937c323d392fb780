/**
 * Users and their permissions, and the personal access tokens of the user who is signed in.
 *
 * @module
 */

import { ask, confirmByName, sentenceOf } from "/ui/dialog.js"
import { button, card, copyable, element, name, notice, select, table } from "/ui/elements.js"
import { dayAndTime } from "/ui/numbers.js"
import { editPermissions } from "/ui/permissions.js"

const EXPIRIES = [
  ["30 days", "30 days"],
  ["1 day", "1 day"],
  ["7 days", "7 days"],
  ["365 days", "1 year"],
  ["never", "never"],
]

export class Users {
  title = "Users"
  #context
  #notice = element("p", { class: "notice" }, "Loading.")
  #tokensNotice = element("p", { class: "notice" }, "Loading.")
  #fresh = element("div", { role: "status" })
  #table = table("Users", [
    ["User", ""],
    ["Status", ""],
    ["Created", "wide"],
    ["Actions", "number"],
  ])
  #tokens = table("Personal access tokens", [
    ["Name", ""],
    ["Expires", ""],
    ["Actions", "number"],
  ])

  /** @param {import("/ui/page.js").Context} context */
  constructor(context) {
    this.#context = context
    const users = card("Users", this.#notice, this.#table)
    users.querySelector(".head").append(button("New user", () => this.#create()))
    const tokens = card("Your personal access tokens", this.#fresh, this.#tokensNotice, this.#tokens)
    tokens.querySelector(".head").append(button("New token", () => this.#createToken()))
    this.element = element("div", { class: "stack" }, users, tokens)
    this.#read()
    this.#readTokens()
  }

  async #read() {
    try {
      const users = await this.#context.client.call("get_users", {})
      this.#table.tBodies[0].replaceChildren(...users.map((each) => this.#row(each)))
      this.#table.hidden = false
      notice(this.#notice, "")
    } catch (error) {
      this.#table.hidden = true
      notice(this.#notice, error.code === "unauthorized" ? "You have no permission to see other users." : sentenceOf(error))
    }
  }

  #row(user) {
    const { client } = this.#context
    const change = (act) => async () => (await act()) && this.#read()
    const isActive = user.status === "active"
    const turn = () =>
      ask(
        {
          title: isActive ? `Disable ${user.username}` : `Enable ${user.username}`,
          about: [isActive ? "All sessions and tokens of this user end." : "The user can sign in again."],
          action: isActive ? "Disable" : "Enable",
          isDangerous: isActive,
        },
        () => client.call("update_user", { user: user.id, status: isActive ? "inactive" : "active" }),
      )
    const remove = () =>
      confirmByName({ title: "Delete user", about: "All sessions and tokens of this user end.", wanted: user.username, action: "Delete user" }, () =>
        client.call("delete_user", { user: user.id }),
      )
    const isRoot = user.id === 0
    const tools = element(
      "div",
      { class: "tools" },
      ...(isRoot ? [] : [button("Permissions", change(() => editPermissions(this.#context, user))), button(isActive ? "Disable" : "Enable", change(turn)), button("Delete", change(remove), "bad")]),
    )
    return element(
      "tr",
      {},
      element("th", { scope: "row" }, name(user.username), ...(isRoot ? [element("span", { class: "quiet" }, "root user, has all permissions")] : [])),
      element("td", {}, user.status),
      element("td", { class: "wide" }, dayAndTime(user.created_at)),
      element("td", { class: "number" }, tools),
    )
  }

  async #create() {
    const username = element("input", { required: "", minlength: "3", maxlength: "50", autocomplete: "off", spellcheck: "false" })
    const password = element("input", { type: "password", required: "", minlength: "3", maxlength: "100", autocomplete: "new-password" })
    const form = {
      title: "New user",
      about: ["A new user has no permissions yet: you grant them in the next step."],
      fields: [
        { name: "username", label: "Name", control: username },
        { name: "password", label: "Password", control: password },
      ],
      action: "Create",
    }
    const made = await ask(form, (values) => this.#context.client.call("create_user", { ...values, status: "active" }))
    if (!made) return
    await this.#read()
    if (await editPermissions(this.#context, made)) this.#read()
  }

  // ----------------------------------------------------------------------------------------------------------- tokens

  async #readTokens() {
    try {
      const tokens = await this.#context.client.call("get_personal_access_tokens", {})
      const rows = tokens.map(({ name: label, expiry_at: expiry }) =>
        element(
          "tr",
          {},
          element("th", { scope: "row" }, name(label)),
          element("td", {}, expiry === null ? "never" : dayAndTime(expiry)),
          element("td", { class: "number" }, button("Delete", () => this.#deleteToken(label), "bad")),
        ),
      )
      this.#tokens.tBodies[0].replaceChildren(...rows)
      this.#tokens.hidden = !rows.length
      notice(this.#tokensNotice, rows.length ? "" : "You have no personal access tokens. Programs sign in with such a token instead of your password.")
    } catch (error) {
      notice(this.#tokensNotice, sentenceOf(error))
    }
  }

  async #createToken() {
    const label = element("input", { required: "", minlength: "3", maxlength: "30", autocomplete: "off", spellcheck: "false" })
    const form = {
      title: "New personal access token",
      fields: [
        { name: "name", label: "Name", control: label },
        { name: "expiry", label: "Expires after", control: select(/** @type {any} */ (EXPIRIES)) },
      ],
      action: "Create",
    }
    const made = await ask(form, (values) => this.#context.client.call("create_personal_access_token", values))
    if (!made) return
    const done = button("I have copied it", () => this.#fresh.replaceChildren(), "primary")
    this.#fresh.replaceChildren(element("div", { class: "next" }, element("p", {}, "Copy the token now: it is not shown again."), copyable("Token", made.token), done))
    this.#readTokens()
  }

  async #deleteToken(label) {
    const form = { title: "Delete token", about: [`Programs that use ${label} can no longer sign in.`], action: "Delete token", isDangerous: true }
    if (await ask(form, () => this.#context.client.call("delete_personal_access_token", { name: label }))) this.#readTokens()
  }
}
