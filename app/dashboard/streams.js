/**
 * Streams and their topics as a tree with their rates: to find a topic, and to create, rename, purge and delete streams.
 *
 * @module
 */

import { makeChart, draw } from "/ui/chart.js"
import { ask, confirmByName } from "/ui/dialog.js"
import { arrange, button, card, element, labelled, name, notice, say, table } from "/ui/elements.js"
import { historyKey, placesOf } from "/ui/figures.js"
import { bytes, count, exact, plural, rate } from "/ui/numbers.js"
import { hrefOf, keyOf, topicHref } from "/ui/router.js"
import { nextStep } from "/ui/snippets.js"
import { newTopic } from "/ui/topic_forms.js"

export const UNKNOWN = "Waiting for data from the server."
const ROWS_MAX = 200
const COLUMNS = [
  ["Topic", ""],
  ["Last minute", "wide"],
  ["Messages/s", "number"],
  ["Bytes/s", "number wide"],
  ["Messages", "number"],
  ["Size", "number wide"],
  ["Partitions", "number wider"],
  ["Groups", "number wider"],
]

export class Streams {
  title = "Streams"
  /** @type {Map<string, any>} */
  #rows = new Map()
  /** @type {Map<string, any>} */
  #bodies = new Map()
  #context
  #filter = element("input", { type: "search", placeholder: "Filter", autocomplete: "off", spellcheck: "false", "data-search": "" })
  #notice = element("p", { class: "notice" }, UNKNOWN)
  #more = element("p", { class: "more quiet", hidden: "" })
  #table = table("Streams and topics", /** @type {any} */ (COLUMNS))
  #next = element("div")
  #byName
  #sample = null

  /** @param {import("/ui/page.js").Context} context @param {import("/ui/router.js").Place} place */
  constructor(context, place) {
    this.#context = context
    this.#table.id = "topics"
    this.#table.hidden = true
    this.#byName = byNameForm()
    this.#byName.hidden = true
    this.#filter.addEventListener("input", () => this.#sample && this.#list(this.#sample))
    this.element = card("Streams and topics", this.#notice, this.#byName, this.#next, element("div", { class: "scrolled" }, this.#table), this.#more)
    const create = button("New stream", () => newStream(context), "primary")
    const search = labelled("Show only names that contain", this.#filter, "only-control")
    this.element.querySelector(".head").append(element("div", { class: "tools" }, search, create))
    this.change(place)
    if (context.figures.refusal) this.refuse(context.figures.refusal)
  }

  change({ path, query }) {
    this.#filter.value = query.get("filter") ?? (path[1] ? `${path[1]} / ` : "")
    if (this.#sample) this.#list(this.#sample)
  }

  /** @param {any} sample */
  show(sample) {
    this.#sample = sample
    this.#list(sample)
  }

  /** @param {any} error */
  refuse(error) {
    const limited = "You have no permission to read all streams. Open a topic by its name."
    notice(this.#notice, error.code === "unauthorized" ? limited : error.message)
    this.#byName.hidden = false
    this.#table.hidden = true
  }

  #list(sample) {
    const wanted = this.#filter.value.trim().toLowerCase()
    const fits = ({ stream, topic }) => `${stream.name} / ${topic.name}`.toLowerCase().includes(wanted)
    const fitting = placesOf(sample).filter(fits)
    const listed = fitting.slice(0, ROWS_MAX)
    const isEmpty = (stream) => !stream.topics.length && `${stream.name} /`.toLowerCase().includes(wanted)
    const empty = sample.streams.filter(isEmpty).slice(0, ROWS_MAX)
    const shown = new Set([...listed.map(({ stream }) => stream), ...empty])
    const streams = sample.streams.filter((stream) => shown.has(stream))
    arrange(this.#table, [this.#table.tHead, ...streams.map((stream) => this.#body(stream, listed))])
    this.#table.hidden = !streams.length
    const nothing = wanted && sample.streams.length ? "No name matches the filter." : "There are no streams yet. New ones appear here."
    notice(this.#notice, streams.length ? "" : nothing)
    if (!sample.streams.length && !this.#next.children.length) this.#next.replaceChildren(nextStep(this.#context))
    if (sample.streams.length) this.#next.replaceChildren()
    const left = fitting.length - listed.length
    notice(this.#more, left > 0 ? `and ${plural(left, "more topic")}: filter by name to see them` : "")
    this.#forget(sample)
  }

  #body(stream, listed) {
    const key = JSON.stringify([stream.id, stream.name])
    let body = this.#bodies.get(key)
    if (!body) {
      const heading = element("th", { scope: "rowgroup", colspan: String(COLUMNS.length), title: stream.name })
      const about = element("span", { class: "quiet" })
      const row = element("div", { class: "stream-row" }, element("span", {}, name(stream.name), about), this.#actions(stream))
      heading.append(row)
      body = element("tbody", {}, element("tr", { class: "stream" }, heading))
      this.#bodies.set(key, body)
    }
    const about = stream.topics.length ? `${plural(stream.topics.length, "topic")}, ${bytes(stream.size_bytes)}` : "no topics yet"
    say(body.rows[0].querySelector(".quiet"), about)
    const rows = listed.filter((place) => place.stream === stream).map((place) => this.#row(place))
    arrange(body, [body.rows[0], ...rows])
    return body
  }

  #actions(stream) {
    const context = this.#context
    const key = keyOf(stream)
    const rename = () =>
      ask(
        {
          title: "Rename stream",
          fields: [{ name: "name", label: "Name", control: element("input", { required: "", maxlength: "255", value: stream.name }) }],
          action: "Rename",
        },
        (values) => context.client.call("update_stream", { stream: key, name: values.name }),
      )
    const purge = () =>
      confirmByName(
        { title: "Purge stream", about: "All messages of all its topics are deleted.", wanted: stream.name, action: "Delete all messages" },
        () => context.client.call("purge_stream", { stream: key }),
      )
    const remove = () =>
      confirmByName(
        { title: "Delete stream", about: "The stream is deleted with all its topics, messages and groups.", wanted: stream.name, action: "Delete stream" },
        () => context.client.call("delete_stream", { stream: key }),
      )
    const menu = element("details", { class: "menu" }, element("summary", { "aria-label": `Actions for stream ${stream.name}` }, "Actions"))
    const act = (text, run, kind) => button(text, () => ((menu.open = false), run()), kind)
    const items = [act("New topic", () => newTopic(context, stream), ""), act("Rename", rename, ""), act("Purge", purge, "bad"), act("Delete", remove, "bad")]
    menu.append(element("div", { class: "items" }, ...items))
    return menu
  }

  #row(place) {
    const key = historyKey(place)
    let row = this.#rows.get(key)
    if (!row) this.#rows.set(key, (row = new Row(place)))
    row.show(place, this.#context.figures.history.of(key))
    return row.element
  }

  /** Forgets the rows of streams and topics that no longer exist. */
  #forget(sample) {
    const keys = new Set(placesOf(sample).map(historyKey))
    for (const key of this.#rows.keys()) if (!keys.has(key)) this.#rows.delete(key)
    const streams = new Set(sample.streams.map((stream) => JSON.stringify([stream.id, stream.name])))
    for (const key of this.#bodies.keys()) if (!streams.has(key)) this.#bodies.delete(key)
  }
}

class Row {
  #chart = makeChart()
  #cells

  /** @param {import("/ui/figures.js").Place} place */
  constructor(place) {
    const link = element("a", { class: "topic", href: topicHref(place), title: place.topic.name }, name(place.topic.name))
    this.#cells = COLUMNS.slice(1).map(([, kind]) => element("td", { class: kind }))
    this.#cells[0].append(this.#chart)
    this.element = element("tr", {}, element("th", { scope: "row" }, link), ...this.#cells)
  }

  /** @param {import("/ui/figures.js").Place} place @param {number[]} values */
  show({ topic }, values) {
    const [, messagesRate, bytesRate, messages, size, partitions, groups] = this.#cells
    draw(this.#chart, values)
    say(messagesRate, rate(topic.messages_per_second))
    say(bytesRate, bytes(topic.bytes_per_second))
    say(messages, count(topic.messages_count))
    messages.title = exact(topic.messages_count)
    say(size, bytes(topic.size_bytes))
    size.title = [`${bytes(topic.disk_bytes)} on the disk`, ...topic.held_back].join("; ")
    size.classList.toggle("warning", topic.held_back.length > 0)
    say(partitions, count(topic.partitions.length))
    say(groups, count(topic.consumer_groups.length))
    this.element.classList.toggle("busy", topic.messages_per_second > 0)
  }
}

/** @param {import("/ui/page.js").Context} context */
export async function newStream(context) {
  const control = element("input", { required: "", maxlength: "255", autocomplete: "off", spellcheck: "false" })
  const form = { title: "New stream", about: ["A stream is a namespace for topics."], fields: [{ name: "name", label: "Name", control }], action: "Create" }
  const made = await ask(form, ({ name: chosen }) => context.client.call("create_stream", { name: chosen }))
  if (made) newTopic(context, made)
}

export function byNameForm() {
  const stream = element("input", { autocomplete: "off", spellcheck: "false", required: "" })
  const topic = element("input", { autocomplete: "off", spellcheck: "false", required: "" })
  const form = element("form", { class: "by-name" }, labelled("Stream", stream), labelled("Topic", topic), element("button", {}, "Open"))
  form.addEventListener("submit", (event) => {
    event.preventDefault()
    location.hash = hrefOf(["streams", stream.value.trim(), topic.value.trim(), "messages"])
  })
  return form
}
