/**
 * Payloads and user headers in readable form: JSON, text, or bytes in hex. JSON is indented token by token, so that no
 * number is rounded and no member is lost.
 *
 * @module
 */

import { element } from "/ui/elements.js"
import { bytesOf } from "/ui/whippet.js"

const TEXT = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true })
const LENIENT = new TextDecoder("utf-8", { ignoreBOM: true })
const UNPRINTABLE = /[\x00-\x08\x0e-\x1f\x7f]/
const TOKENS = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g
const NESTED_MAX = 100

/**
 * @param {Uint8Array} bytes
 * @param {"auto" | "text" | "json" | "hex"} form
 * @param {number} perLine bytes per line of hex
 * @returns {{form: string, nodes: (Node | string)[]}} with the form that was chosen
 */
export function shown(bytes, form, perLine) {
  const text = form === "hex" ? null : textOf(bytes)
  if (text === null || (form === "auto" && UNPRINTABLE.test(text))) return { form: "hex", nodes: [hex(bytes, perLine)] }
  if (form === "json" || (form === "auto" && /^\s*[[{]/.test(text))) {
    if (isJson(text)) return { form: "json", nodes: laidOut(text) }
  }
  return { form: "text", nodes: [text] }
}

/**
 * The beginning of a payload as one line.
 *
 * @param {Uint8Array} bytes perhaps cut off within a character
 * @param {string} form
 */
export function oneLine(bytes, form) {
  const text = form === "hex" ? null : LENIENT.decode(bytes, { stream: true })
  LENIENT.decode()
  if (text === null || UNPRINTABLE.test(text) || text.includes("\ufffd")) return hexLine(bytes.subarray(0, 64))
  return text.replace(/\s+/g, " ")
}

function textOf(bytes) {
  try {
    return TEXT.decode(bytes)
  } catch {
    return null
  }
}

function isJson(text) {
  try {
    JSON.parse(text)
    return true
  } catch {
    return false
  }
}

/** @param {string} text that is JSON */
function laidOut(text) {
  const tokens = text.match(TOKENS) ?? []
  /** @type {(Node | string)[]} */
  const nodes = []
  let depth = 0
  let plain = ""
  const line = () => `\n${"  ".repeat(Math.min(depth, NESTED_MAX))}`
  tokens.forEach((token, i) => {
    const before = tokens[i - 1]
    const isEmpty = (token === "}" && before === "{") || (token === "]" && before === "[")
    if (token === "}" || token === "]") {
      depth--
      plain += isEmpty ? token : line() + token
      return
    }
    if (before === "{" || before === "[" || before === ",") plain += line()
    if (token === "{" || token === "[") depth++
    if (/^[{[,]$/.test(token)) plain += token
    else if (token === ":") plain += ": "
    else {
      const kind = token[0] !== '"' ? "literal" : tokens[i + 1] === ":" ? "member" : "string"
      nodes.push(plain, element("span", { class: kind }, token))
      plain = ""
    }
  })
  return [...nodes, plain]
}

function hex(bytes, perLine) {
  const lines = []
  for (let at = 0; at < bytes.length; at += perLine) {
    const row = bytes.subarray(at, at + perLine)
    const octets = Array.from(row, (octet) => octet.toString(16).padStart(2, "0")).join(" ")
    const letters = Array.from(row, (octet) => (octet > 31 && octet < 127 ? String.fromCharCode(octet) : "·")).join("")
    lines.push(`${at.toString(16).padStart(4, "0")}  ${octets.padEnd(perLine * 3 - 1)}  ${letters}`)
  }
  return lines.join("\n")
}

// --------------------------------------------------------------------------------------------------------- user headers

/**
 * @param {{kind: string, value: string}} part the key or the value of a header
 * @returns {string}
 */
export function headerText({ kind, value }) {
  const bytes = bytesOf(value)
  if (kind === "bool") return bytes[0] ? "true" : "false"
  if (kind.startsWith("float")) {
    const view = new DataView(bytes.buffer)
    if (bytes.length === 4) return String(view.getFloat32(0, true))
    if (bytes.length === 8) return String(view.getFloat64(0, true))
  }
  if (/^u?int/.test(kind)) return integer(bytes, kind[0] === "i")
  const text = textOf(bytes)
  return text === null || UNPRINTABLE.test(text) ? hexLine(bytes) : text
}

function integer(bytes, isSigned) {
  let value = 0n
  for (const octet of [...bytes].reverse()) value = (value << 8n) | BigInt(octet)
  return String(isSigned ? BigInt.asIntN(bytes.length * 8, value) : value)
}

function hexLine(bytes) {
  return Array.from(bytes, (octet) => octet.toString(16).padStart(2, "0")).join(" ")
}
