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
