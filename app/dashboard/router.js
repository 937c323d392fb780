/**
 * Addresses: every view has one, after the `#` of the page, so that links, reloads and the Back button work.
 *
 *     #/                                   the overview
 *     #/streams                            all streams and topics
 *     #/streams/orders/eu/messages?from=offset&at=41&partition=0
 *
 * Streams and topics are named as in commands: by name, or by id if the name looks like a number.
 *
 * @module
 */

/**
 * @typedef {object} Place
 * @property {string[]} path its parts, such as `["streams", "orders", "eu", "messages"]`
 * @property {URLSearchParams} query
 */

/** @param {string} hash @returns {Place} */
export function placeOf(hash) {
  const text = hash.replace(/^#/, "")
  const at = text.indexOf("?")
  const query = new URLSearchParams(at < 0 ? "" : text.slice(at + 1))
  const path = (at < 0 ? text : text.slice(0, at)).split("/").map(decoded)
  // `#orders/eu`, as in links to earlier versions of the page.
  if (path[0] !== "") return { path: path.length > 1 ? ["streams", ...path] : [], query }
  return { path: path.filter((part) => part !== ""), query }
}

/** @param {(string | number)[]} path @param {Record<string, string | number | undefined>} [query] */
export function hrefOf(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== "")
  const parameters = new URLSearchParams(given.map(([key, value]) => [key, String(value)])).toString()
  return `#/${path.map((part) => encodeURIComponent(part)).join("/")}${parameters && `?${parameters}`}`
}

/** A name that looks like a number would be taken for an id. @param {{name: string, id: number | null}} thing */
export function keyOf(thing) {
  return /^\d+$/.test(thing.name) && thing.id !== null ? String(thing.id) : thing.name
}

/** @param {{stream: any, topic: any}} place @param {string} [tab] */
export function topicHref({ stream, topic }, tab = "messages", query = {}) {
  return hrefOf(["streams", keyOf(stream), keyOf(topic), tab], query)
}

function decoded(text) {
  try {
    return decodeURIComponent(text)
  } catch {
    return ""
  }
}
