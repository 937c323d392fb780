/**
 * Elements of the page. Whatever a server or a user has said becomes a text in them and nothing else, so that no payload
 * and no name can be more than something to read.
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

/** A name that somebody has given: its letters cannot turn round what is beside it. @param {string} text */
export function name(text) {
  return element("bdi", {}, text)
}

/** Writes only what has changed. @param {Element} target @param {string} text */
export function say(target, text) {
  if (target.textContent !== text) target.textContent = text
}

/** A sentence in a paragraph that is hidden while there is none. @param {any} target @param {string} text */
export function notice(target, text) {
  say(target, text)
  target.hidden = !text
}

/** Makes these the children of the parent, in this order, and moves no more than it has to. */
export function arrange(parent, children) {
  const wanted = new Set(children)
  for (const child of [...parent.children]) if (!wanted.has(child)) child.remove()
  children.forEach((child, i) => {
    if (parent.children[i] !== child) parent.insertBefore(child, parent.children[i] ?? null)
  })
}
