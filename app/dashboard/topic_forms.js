/**
 * Forms about topics: to create one, to change its name and retention, its partitions, and to purge or delete it.
 *
 * @module
 */

import { ask, confirmByName } from "/ui/dialog.js"
import { element } from "/ui/elements.js"
import { plural } from "/ui/numbers.js"
import { hrefOf, keyOf } from "/ui/router.js"

/** The server's way to write "never" and "unlimited"; too large for a number of JavaScript. */
const NEVER = "never"
const UNLIMITED = 2 ** 64

/** @param {import("/ui/page.js").Context} context @param {{name: string, id: number}} stream */
export async function newTopic(context, stream) {
  const name = input({ required: "", maxlength: "255" })
  const partitions = input({ type: "number", min: "1", max: "1000", value: "1", required: "" })
  const expiry = input({ placeholder: "7 days" })
  const form = {
    title: "New topic",
    about: [`In the stream ${stream.name}.`],
    fields: [
      { name: "name", label: "Name", control: name },
      { name: "partitions", label: "Partitions", control: partitions, hint: "Order is kept within a partition. More partitions let more consumers of a group share the work." },
      { name: "expiry", label: "Delete messages after", control: expiry, hint: "For example, 7 days or never. Empty: the server's default." },
    ],
    action: "Create",
  }
  const made = await ask(form, (values) =>
    context.client.call("create_topic", {
      stream: keyOf(stream),
      name: values.name,
      partitions_count: Number(values.partitions),
      ...(values.expiry.trim() && { message_expiry: values.expiry.trim() }),
    }),
  )
  if (made) location.hash = hrefOf(["streams", keyOf(stream), keyOf(made), "messages"])
}

/** @param {import("/ui/page.js").Context} context @param {{stream: string, topic: string}} place @param {any} found */
export async function changeTopic(context, place, found) {
  const name = input({ required: "", maxlength: "255", value: found.name })
  const expiry = input({ placeholder: "unchanged" })
  const form = {
    title: "Edit topic",
    fields: [
      { name: "name", label: "Name", control: name },
      { name: "expiry", label: "Delete messages after", control: expiry, hint: "For example, 7 days or never. Empty: unchanged." },
    ],
    action: "Save",
  }
  const done = await ask(form, (values) => {
    const expires = values.expiry.trim() && { message_expiry: values.expiry.trim() }
    return context.client.call("update_topic", { ...place, ...(values.name !== found.name && { name: values.name }), ...expires })
  })
  if (done && name.value !== found.name) location.hash = hrefOf(["streams", place.stream, name.value, "settings"])
  return done
}

/** @param {import("/ui/page.js").Context} context @param {{stream: string, topic: string}} place */
export function addPartitions(context, place) {
  const control = input({ type: "number", min: "1", max: "1000", value: "1", required: "" })
  const hint = "Messages with a key may then go to a different partition than before."
  return ask({ title: "Add partitions", fields: [{ name: "count", label: "How many", control, hint }], action: "Add" }, (values) =>
    context.client.call("create_partitions", { ...place, partitions_count: Number(values.count) }),
  )
}

/** @param {import("/ui/page.js").Context} context @param {{stream: string, topic: string}} place */
export function removePartitions(context, place, found) {
  const most = found.partitions.length
  const control = input({ type: "number", min: "1", max: String(most), value: "1", required: "" })
  const typed = input({ required: "" })
  const check = () => typed.setCustomValidity(typed.value === found.name ? "" : "The name does not match.")
  typed.addEventListener("input", check)
  check()
  return ask(
    {
      title: "Remove partitions",
      about: [`The topic has ${plural(most, "partition")}. Those with the highest numbers are deleted with their messages.`],
      fields: [
        { name: "count", label: "How many", control },
        { name: "typed", label: "Type the name of the topic to confirm", control: typed, hint: found.name },
      ],
      action: "Delete partitions",
      isDangerous: true,
    },
    (values) => context.client.call("delete_partitions", { ...place, partitions_count: Number(values.count) }),
  )
}

/** @param {import("/ui/page.js").Context} context @param {{stream: string, topic: string}} place */
export function purgeTopic(context, place, found) {
  const form = { title: "Purge topic", about: `All messages of the topic are deleted: ${plural(found.messages_count, "message")}.`, wanted: found.name, action: "Delete all messages" }
  return confirmByName(form, () => context.client.call("purge_topic", place))
}

/** @param {import("/ui/page.js").Context} context @param {{stream: string, topic: string}} place */
export async function deleteTopic(context, place, found) {
  const form = { title: "Delete topic", about: "The topic is deleted with its messages and consumer groups.", wanted: found.name, action: "Delete topic" }
  const done = await confirmByName(form, () => context.client.call("delete_topic", place))
  if (done) location.hash = hrefOf(["streams"])
}

/** @param {number | string} us how long messages are kept */
export function expiryText(us) {
  const seconds = Number(us) / 1e6
  if (!seconds) return "the server's default"
  if (Number(us) >= UNLIMITED - 2 ** 12) return NEVER
  for (const [unit, length] of /** @type {[string, number][]} */ ([["day", 86400], ["hour", 3600], ["minute", 60]])) {
    if (seconds >= length && seconds % length === 0) return plural(seconds / length, unit)
  }
  return plural(seconds, "second")
}

/** @param {number | string} value */
export function sizeLimit(value) {
  return Number(value) >= UNLIMITED - 2 ** 12 ? "unlimited" : Number(value) ? null : "the server's default"
}

function input(attributes) {
  return element("input", { autocomplete: "off", spellcheck: "false", ...attributes })
}
