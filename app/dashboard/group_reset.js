/**
 * Resetting the offsets of a group, with a preview of what that means for each partition.
 *
 * @module
 */

import { ask } from "/ui/dialog.js"
import { element, select, table } from "/ui/elements.js"
import { exact, plural } from "/ui/numbers.js"

const WHERE = [
  ["first", "the first message: read all messages again"],
  ["end", "the end: skip all existing messages"],
  ["time", "the first message since a time"],
  ["offset", "an offset"],
]

/**
 * @param {import("/ui/page.js").Context} context
 * @param {{stream: string, topic: string}} place
 * @param {{id: number, name: string, members_count: number}} group
 * @param {any[]} readers
 */
export async function resetOffsets(context, place, group, readers) {
  const { client } = context
  const { partitions } = await client.call("get_topic", place)
  const stored = new Map(readers.filter((each) => each.kind === "group" && each.id === group.id).map((each) => [each.partition_id, each.stored_offset]))
  const where = select(/** @type {any} */ (WHERE))
  const offset = element("input", { inputmode: "numeric", pattern: "[0-9]+", value: "0" })
  const moment = element("input", { type: "datetime-local", step: "1" })
  const preview = table("Preview", [
    ["Partition", ""],
    ["Committed", "number"],
    ["Next to read", "number"],
    ["Effect", ""],
  ])
  let turn = 0
  let wanted = []
  const look = async () => {
    const mine = ++turn
    offset.closest(".field").hidden = where.value !== "offset"
    moment.closest(".field").hidden = where.value !== "time"
    const found = await Promise.all(partitions.map((each) => nextOf(client, place, each, where.value, offset.value, moment.value)))
    if (mine !== turn) return
    wanted = found
    preview.tBodies[0].replaceChildren(...partitions.map((each, i) => rowOf(each, stored.get(each.id), wanted[i])))
  }
  for (const each of [where, offset, moment]) each.addEventListener("change", () => look().catch(() => {}))
  setTimeout(() => look().catch(() => {}))
  const members = group.members_count ? "Stop its members first: they would overwrite the new offsets." : "The group has no members."
  const fields = [
    { name: "where", label: "Continue with", control: where },
    { name: "offset", label: "Offset", control: offset },
    { name: "moment", label: "Time", control: moment },
  ]
  return ask({ title: `Reset offsets of ${group.name}`, about: [members, preview], fields, action: "Reset", isDangerous: true }, async () => {
    await look()
    const { members_count: members } = await client.call("get_consumer_group", { ...place, group: group.id })
    if (members) throw new Error(`The group has ${plural(members, "member")}, which would overwrite the new offsets: stop all members first`)
    await client.call("join_consumer_group", { ...place, group: group.id })
    try {
      for (const [i, each] of partitions.entries()) await store(client, place, group, each, stored.get(each.id), wanted[i])
    } finally {
      await client.call("leave_consumer_group", { ...place, group: group.id }).catch(() => {})
    }
  })
}

/** The offset with which the group continues. */
async function nextOf(client, place, partition, where, offset, moment) {
  const { id, first_offset: first, next_offset: next } = partition
  if (where === "first") return first
  if (where === "end") return next
  if (where === "offset") return Math.min(Math.max(Number(offset) || 0, first), next)
  const us = new Date(moment).getTime() * 1000
  if (!us) return first
  const { messages } = await client.call("poll_messages", { ...place, partition_id: id, kind: "timestamp", value: us, count: 1 })
  return messages[0]?.header.offset ?? next
}

/** To commit is to name the last message that was read. A group that has read nothing has no offset. */
async function store(client, place, group, partition, before, next) {
  const { id, first_offset: first } = partition
  const consumer = { ...place, partition_id: id, consumer_kind: "consumer_group" }
  if (next > 0) return client.call("store_consumer_offset", { ...consumer, consumer_id: group.id, offset: next - 1 })
  if (before !== undefined && first === 0) return client.call("delete_consumer_offset", { ...consumer, consumer: group.id })
}

function rowOf(partition, before, next) {
  const was = Math.max(before === undefined ? 0 : before + 1, partition.first_offset)
  const effect = next < was ? `${plural(was - next, "message")} again` : next > was ? `${plural(next - was, "message")} skipped` : "unchanged"
  return element(
    "tr",
    {},
    element("th", { scope: "row" }, String(partition.id)),
    element("td", { class: "number" }, before === undefined ? "none" : exact(before)),
    element("td", { class: "number" }, exact(next)),
    element("td", { class: next > was ? "bad" : "" }, effect),
  )
}
