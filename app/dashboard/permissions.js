/**
 * The permissions of a user as a matrix: everywhere, and for single streams and topics.
 *
 * @module
 */

import { ask } from "/ui/dialog.js"
import { element, name } from "/ui/elements.js"

const EVERYWHERE = [
  ["Server", "read_servers", "manage_servers"],
  ["Users", "read_users", "manage_users"],
  ["Streams", "read_streams", "manage_streams"],
  ["Topics", "read_topics", "manage_topics"],
  ["Messages", "poll_messages", "send_messages"],
]
const OF_STREAM = ["read_stream", "manage_stream", "read_topics", "manage_topics", "poll_messages", "send_messages"]
const ROWS_MAX = 300
const OF_TOPIC = ["read_topic", "manage_topic", "poll_messages", "send_messages"]

/** @param {import("/ui/page.js").Context} context @param {{id: number, username: string}} user */
export async function editPermissions(context, user) {
  const { client, figures } = context
  const { permissions } = await client.call("get_user", { user: user.id })
  const sample = await figures.first()
  const granted = permissions ?? { global: {}, streams: null }
  /** Boxes by where they are: [[], flag], [[stream], flag], [[stream, topic], flag]. @type {{path: string[], flag: string, box: any}[]} */
  const boxes = []
  const cell = (path, flag, isChecked, label) => {
    const box = element("input", { type: "checkbox", "aria-label": label })
    box.checked = Boolean(isChecked)
    boxes.push({ path, flag, box })
    return element("td", {}, box)
  }
  const everywhere = element("tbody", {}, ...EVERYWHERE.map(([what, ...flags]) => element("tr", {}, element("th", { scope: "row" }, what), ...flags.map((flag) => cell([], flag, granted.global[flag], flag.replace("_", " "))))))
  const heads = (texts) => element("thead", {}, element("tr", {}, ...texts.map((each) => element("th", { scope: "col" }, each))))
  const rows = []
  for (const stream of streamsOf(sample, granted.streams ?? {})) {
    const held = granted.streams?.[stream.id] ?? {}
    const flags = OF_STREAM.map((flag) => cell([String(stream.id)], flag, held[flag], `${flag.replace("_", " ")}: ${stream.name}`))
    rows.push(element("tr", {}, element("th", { scope: "row" }, name(stream.name)), ...flags))
    for (const topic of stream.topics) {
      const rights = held.topics?.[topic.id] ?? {}
      const [read, manage, poll, send] = OF_TOPIC.map((flag) => cell([String(stream.id), String(topic.id)], flag, rights[flag], `${flag.replace("_", " ")}: ${stream.name} / ${topic.name}`))
      rows.push(element("tr", {}, element("th", { scope: "row", class: "inner" }, name(topic.name)), element("td"), element("td"), read, manage, poll, send))
    }
  }
  const matrix = element("table", { class: "matrix", "aria-label": "Everywhere" }, heads(["Everywhere", "Read", "Manage"]), everywhere)
  const single = element("table", { class: "matrix", "aria-label": "Single streams and topics" }, heads(["Only in", "Read stream", "Manage", "Read topics", "Manage", "Poll", "Send"]), element("tbody", {}, ...rows))
  const about = [element("span", { class: "quiet" }, "For messages, Read permits polling and Manage permits sending. Permissions that are granted everywhere need no tick below."), matrix, element("div", { class: "scrolled" }, single)]
  return ask({ title: `Permissions of ${user.username}`, about, action: "Save" }, () => client.call("update_permissions", { user: user.id, permissions: chosen(boxes) }))
}

/** Streams of the figures, not too many, and all that have permissions: by number, if the figures lack them. */
function streamsOf(sample, held) {
  let room = ROWS_MAX
  const known = (sample?.streams ?? [])
    .filter(({ id }) => id !== null && (held[String(id)] || room-- > 0))
    .map((stream) => ({ ...stream, topics: stream.topics.filter(({ id }) => held[String(stream.id)]?.topics?.[String(id)] || room-- > 0) }))
  const ids = new Set(known.map(({ id }) => String(id)))
  const others = Object.keys(held).filter((id) => !ids.has(id)).map((id) => ({ id, name: `stream ${id}`, topics: topicsOf(held[id], []) }))
  return [...known.map((stream) => ({ ...stream, topics: topicsOf(held[String(stream.id)] ?? {}, stream.topics) })), ...others]
}

function topicsOf(held, topics) {
  const ids = new Set(topics.map(({ id }) => String(id)))
  const others = Object.keys(held.topics ?? {}).filter((id) => !ids.has(id)).map((id) => ({ id, name: `topic ${id}` }))
  return [...topics, ...others]
}

/** The permissions that are ticked; a stream or topic without any has no entry. */
function chosen(boxes) {
  const all = { global: {}, streams: {} }
  const streams = {}
  for (const { path, flag, box } of boxes) {
    const [stream, topic] = path
    if (stream === undefined) all.global[flag] = box.checked
    else {
      const entry = (streams[stream] ??= { flags: {}, topics: {}, isNeeded: false })
      const flags = topic === undefined ? entry.flags : (entry.topics[topic] ??= {})
      flags[flag] = box.checked
      entry.isNeeded ||= box.checked
    }
  }
  for (const [id, { flags, topics, isNeeded }] of Object.entries(streams)) {
    if (!isNeeded) continue
    const kept = Object.entries(topics).filter(([, rights]) => Object.values(rights).some(Boolean))
    all.streams[id] = { ...flags, topics: kept.length ? Object.fromEntries(kept) : null }
  }
  return { ...all, streams: Object.keys(all.streams).length ? all.streams : null }
}
