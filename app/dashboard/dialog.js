/**
 * Dialogs: forms that do one thing, and confirmations. A dialog stays open, with the reason, if the server refuses.
 *
 * @module
 */

import { button, element, labelled, notice } from "/ui/elements.js"

/**
 * @typedef {object} Field
 * @property {string} name of its value
 * @property {string} label
 * @property {any} control
 * @property {string} [hint]
 */

/**
 * Shows a form. `act` receives the values by name, and resolves when it is done; its error is shown.
 *
 * @param {{title: string, about?: (Node | string)[], fields?: Field[], action: string, isDangerous?: boolean}} form
 * @param {(values: Record<string, string>) => Promise<any>} act
 * @returns {Promise<any>} what `act` returned; undefined if the dialog was cancelled
 */
export function ask({ title, about = [], fields = [], action, isDangerous = false }, act) {
  const problem = element("p", { class: "problem", role: "alert", hidden: "" })
  const submit = element("button", { class: isDangerous ? "danger" : "primary" }, action)
  const heading = element("h2", { id: "dialog-title" }, title)
  const inputs = fields.map(({ label, control, hint }) => labelled(label, control, "", hint))
  const cancel = button("Cancel", () => dialog.close())
  const form = element(
    "form",
    { method: "dialog" },
    heading,
    ...(about.length ? [element("div", { class: "about" }, ...about)] : []),
    ...inputs,
    problem,
    element("div", { class: "actions" }, cancel, submit),
  )
  const dialog = element("dialog", { "aria-labelledby": "dialog-title" }, form)
  document.body.append(dialog)
  dialog.showModal()
  return new Promise((resolve) => {
    let result
    dialog.addEventListener("close", () => {
      dialog.remove()
      resolve(result)
    })
    form.addEventListener("submit", async (event) => {
      event.preventDefault()
      submit.disabled = true
      notice(problem, "")
      try {
        const values = Object.fromEntries(fields.map((field) => [field.name, valueOf(field.control)]))
        result = (await act(values)) ?? true
        dialog.close()
      } catch (error) {
        notice(problem, sentenceOf(error))
      } finally {
        submit.disabled = false
      }
    })
  })
}

/** Asks to type the name of what will be lost. @param {string} wanted */
export function confirmByName({ title, about, wanted, action }, act) {
  const control = element("input", { autocomplete: "off", spellcheck: "false", required: "" })
  const check = () => control.setCustomValidity(control.value === wanted ? "" : "The name does not match.")
  control.addEventListener("input", check)
  check()
  return ask(
    {
      title,
      about: [about],
      fields: [{ name: "typed", label: "Type its name to confirm", control, hint: wanted }],
      action,
      isDangerous: true,
    },
    act,
  )
}

/** @param {Error} error in the words of the server */
export function sentenceOf(error) {
  const text = error.message || String(error)
  return `${text[0].toUpperCase()}${text.slice(1).replace(/\.$/, "")}.`
}

function valueOf(control) {
  return control.type === "checkbox" ? String(control.checked) : control.value
}
