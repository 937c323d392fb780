/**
 * The keyboard: `/` searches, `g` and a letter go to a view, and `?` lists the keys. Arrows move within tables.
 *
 * @module
 */

import { button, element } from "/ui/elements.js"

/** @type {Record<string, [hash: string, name: string]>} */
const VIEWS = {
  o: ["#/", "the overview"],
  s: ["#/streams", "streams and topics"],
  c: ["#/groups", "consumer groups"],
  u: ["#/users", "users"],
  k: ["#/clients", "clients"],
  v: ["#/server", "the server"],
}

export function listenToKeys() {
  let isSecond = false
  addEventListener("keydown", (event) => {
    const target = /** @type {any} */ (event.target)
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return
    if (target.closest?.("input, textarea, select") || document.getElementById("dashboard")?.hidden) return
    const wasSecond = isSecond
    isSecond = event.key === "g"
    if (wasSecond && VIEWS[event.key]) location.hash = VIEWS[event.key][0]
    else if (event.key === "/") search(event)
    else if (event.key === "?") explain()
  })
}

/** @param {KeyboardEvent} event */
function search(event) {
  const field = /** @type {HTMLInputElement | null} */ (document.querySelector("[data-search]"))
  if (!field) return void (location.hash = "#/streams")
  event.preventDefault()
  field.focus()
  field.select()
}

function explain() {
  const keys = [["/", "search"], ...Object.entries(VIEWS).map(([key, [, name]]) => [`g ${key}`, `go to ${name}`]), ["↑ ↓", "move in the table of messages"], ["Enter", "open or close a message"], ["Esc", "close a dialog"]]
  const list = element("dl", { class: "facts" }, ...keys.map(([key, what]) => element("div", {}, element("dt", {}, element("kbd", {}, key)), element("dd", {}, what))))
  const close = button("Close", () => dialog.close(), "primary")
  const dialog = element("dialog", { "aria-labelledby": "keys-title" }, element("h2", { id: "keys-title" }, "Keyboard shortcuts"), list, element("div", { class: "actions" }, close))
  dialog.addEventListener("close", () => dialog.remove())
  document.body.append(dialog)
  dialog.showModal()
}
