/**
 * Elements of the page. Data from servers and users is only ever put in as text, so that no payload and no name can be
 * more than something to read.
 *
 * @module
 */

/** @param {string} id @returns {any} */
export function byId(id) {
  return document.getElementById(id)
}

/**
 * @param {string} tag
 * @param {Record<string, string>} [attributes]
 * @param {...(Node | string)} children
 * @returns {any}
 */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag)
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value)
  made.append(...children)
  return made
}

/** A name given by a user; right-to-left characters in it cannot reorder its neighbours. @param {string} text */
export function name(text) {
  return element("bdi", {}, text)
}

/** @param {string} text @param {(event: Event) => void} press @param {string} [kind] the class */
export function button(text, press, kind = "") {
  const made = element("button", { type: "button", ...(kind && { class: kind }) }, text)
  made.addEventListener("click", press)
  return made
}

let fields = 0

/** A control with its label, and perhaps a hint. @param {string} label @param {any} control @param {string} [kind] the class @returns {any} */
export function labelled(label, control, kind = "", hint = "") {
  control.id ||= `field-${++fields}`
  const field = element("div", { class: `field ${kind}` }, element("label", { for: control.id }, label), control)
  if (!hint) return field
  control.setAttribute("aria-describedby", `${control.id}-hint`)
  field.append(element("small", { class: "quiet", id: `${control.id}-hint` }, hint))
  return field
}

/** @param {[value: string, text: string][]} choices */
export function select(choices, value = choices[0][0]) {
  const made = element("select", {}, ...choices.map(([each, text]) => element("option", { value: each }, text)))
  made.value = value
  return made
}

/** @param {string | Node} title @param {...(Node | string)} children */
export function card(title, ...children) {
  const heading = element("h2", {}, title)
  const head = element("div", { class: "head" }, heading)
  return element("section", { class: "card", ...(typeof title === "string" && { "aria-label": title }) }, head, ...children)
}

/** A table with its columns: the classes of a column apply to its heading as well. @param {[string, string][]} columns */
export function table(label, columns) {
  const headings = columns.map(([text, kind]) => element("th", { scope: "col", class: kind }, text))
  return element(
    "table",
    { "aria-label": label },
    element("thead", {}, element("tr", {}, ...headings)),
    element("tbody"),
  )
}

/** Sets the text, if it has changed. @param {Element} target @param {string} text */
export function say(target, text) {
  if (target.textContent !== text) target.textContent = text
}

/** Sets the sentence of a paragraph, which is hidden while it is empty. @param {any} target @param {string} text */
export function notice(target, text) {
  say(target, text)
  target.hidden = !text
}

/** Makes these the children of the parent, in this order, with as few moves as possible. */
export function arrange(parent, children) {
  const wanted = new Set(children)
  for (const child of [...parent.children]) if (!wanted.has(child)) child.remove()
  children.forEach((child, i) => {
    if (parent.children[i] !== child) parent.insertBefore(child, parent.children[i] ?? null)
  })
}

/** Text to copy, with a button that does it. @param {string} label @param {string} text */
export function copyable(label, text) {
  const code = element("pre", { tabindex: "0", "aria-label": label }, text)
  const copy = button("Copy", async () => {
    getSelection()?.selectAllChildren(code)
    // Browsers have no clipboard on pages without TLS; there the text is selected.
    await navigator.clipboard?.writeText(text)
    say(copy, navigator.clipboard ? "Copied" : "Selected: press Ctrl+C")
    setTimeout(() => say(copy, "Copy"), 3000)
  })
  return element("figure", { class: "snippet" }, element("figcaption", {}, label, copy), code)
}
