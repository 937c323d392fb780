/**
 * The form that sends one message to a topic.
 *
 * @module
 */

import { ask } from "/ui/dialog.js"
import { element, select } from "/ui/elements.js"
import { base64Of } from "/ui/whippet.js"

/** @param {import("/ui/page.js").Context} context @param {{stream: string, topic: string}} place @param {number[]} partitions */
export function produce(context, place, partitions) {
  const control = (tag, attributes) => element(tag, { autocomplete: "off", spellcheck: "false", ...attributes })
  const numbers = partitions.map((id) => /** @type {[string, string]} */ ([String(id), String(id)]))
  return ask(
    {
      title: "Produce a message",
      fields: [
        { name: "payload", label: "Payload", control: control("textarea", { rows: "6", required: "" }) },
        { name: "key", label: "Key", control: control("input", { maxlength: "255" }), hint: "Messages with the same key go to the same partition." },
        { name: "partition", label: "Partition", control: select([["", "by key, or in turn"], ...numbers]) },
        { name: "headers", label: "User headers", control: control("textarea", { rows: "2", placeholder: "kind: new" }), hint: "One per line, as name: value." },
      ],
      action: "Send",
    },
    async ({ payload, key, partition, headers }) => {
      if (key && partition) throw new Error("Choose a key or a partition, not both")
      const message = { payload: base64Of(payload), user_headers: headersOf(headers) }
      const sent = await context.client.call("send_messages", { ...place, partitioning: partitioningOf(key, partition), messages: [message] })
      const [{ partition_id: id, base_offset: offset }] = sent.confirmations
      context.announce(`Sent to partition ${id}, offset ${offset}`)
    },
  )
}

function partitioningOf(key, partition) {
  if (key) return { kind: "messages_key", value: base64Of(key) }
  if (!partition) return { kind: "balanced", value: "" }
  const number = new DataView(new ArrayBuffer(4))
  number.setUint32(0, Number(partition), true)
  return { kind: "partition_id", value: base64Of(new Uint8Array(number.buffer)) }
}

/** @param {string} text */
function headersOf(text) {
  return text
    .split("\n")
    .filter((line) => line.trim())
    .map((line) => {
      const at = line.indexOf(":")
      if (at < 1) throw new Error(`A header is written as name: value, not ${line.slice(0, 40)}`)
      const part = (value) => ({ kind: "string", value: base64Of(value.trim()) })
      return { key: part(line.slice(0, at)), value: part(line.slice(at + 1)) }
    })
}
