/**
 * Consumer groups: all of them, those with the largest lag first; and those of one topic, with their members, the lag of
 * each partition, and what consumers have stored.
 *
 * @module
 */

import { draw, makeChart } from "/ui/chart.js"
import { ask, confirmByName, sentenceOf } from "/ui/dialog.js"
import { arrange, button, card, element, name, notice, say, table } from "/ui/elements.js"
import { historyKey, placesOf } from "/ui/figures.js"
import { resetOffsets } from "/ui/group_reset.js"
import { count, exact, plural } from "/ui/numbers.js"
import { topicHref } from "/ui/router.js"
import { UNKNOWN } from "/ui/streams.js"

const ROWS_MAX = 100
const REFRESHED_EVERY_MS = 3000

export class Groups {
  title = "Consumer groups"
  #limit
  /** @type {Map<string, any>} */
  #rows = new Map()
  #notice = element("p", { class: "notice" }, UNKNOWN)
  #more = element("p", { class: "more quiet", hidden: "" })
  #table = table("Consumer groups", [
    ["Group", ""],
    ["Members", "number"],
    ["Lag", "number"],
  ])

  /** @param {import("/ui/page.js").Context} context */
  constructor(context, _ = null, limit = ROWS_MAX) {
    this.#limit = limit
    this.#table.id = "groups"
    this.#table.hidden = true
    this.element = card("Consumer groups", this.#notice, element("div", { class: "scrolled" }, this.#table), this.#more)
    if (context.figures.refusal) notice(this.#notice, "Open a topic to see its groups.")
  }

  /** @param {any} sample */
  show(sample) {
    const groups = placesOf(sample).flatMap(({ stream, topic }) => topic.consumer_groups.map((group) => ({ stream, topic, group })))
    groups.sort((a, b) => b.group.lag - a.group.lag || a.group.name.localeCompare(b.group.name))
    const listed = groups.slice(0, this.#limit)
    const most = Math.max(...listed.map(({ group }) => group.lag), 1)
    const before = this.#rows
    this.#rows = new Map()
    const rows = listed.map((place) => {
      const key = JSON.stringify([historyKey(place), place.group.name])
      const row = before.get(key) ?? makeRow(place)
      this.#rows.set(key, row)
      fill(row, place.group, most)
      return row
    })
    arrange(this.#table.tBodies[0], rows)
    this.#table.hidden = !rows.length
    notice(this.#notice, rows.length ? "" : "There are no consumer groups. Create one on the Consumer groups tab of a topic, or start a consumer that creates one.")
    const left = groups.length - listed.length
    notice(this.#more, left ? `and ${plural(left, "more group")} with a smaller lag` : "")
  }
}

function makeRow(place) {
  const { stream, topic, group } = place
  const where = element("span", { class: "quiet" }, name(stream.name), " / ", name(topic.name))
  const bar = element("span", { class: "lag" }, element("span"))
  const link = element("a", { href: topicHref(place, "groups") }, name(group.name))
  return element(
    "tr",
    {},
    element("th", { scope: "row", title: group.name }, link, where),
    element("td", { class: "number" }),
    element("td", { class: "number" }, element("span", { class: "figure" }), bar),
  )
}

function fill(row, group, most) {
  const [, members, lag] = row.cells
  say(members, group.members_count ? count(group.members_count) : "none")
  say(lag.querySelector(".figure"), count(group.lag))
  lag.title = `${exact(group.lag)} messages that the group has not committed`
  lag.querySelector(".lag > span").style.width = `${(group.lag / most) * 100}%`
  // Without members, the lag can only grow.
  row.classList.toggle("abandoned", group.lag > 0 && !group.members_count)
}

// ---------------------------------------------------------------------------------------------------------- of a topic

export class GroupsOfTopic {
  #context
  #place
  #topic = null
  #readers = []
  #groups = []
  #readAt = 0
  /** Lags by group and partition, for the lines. @type {Map<string, number[]>} */
  #lags = new Map()
  #notice = element("p", { class: "notice" }, UNKNOWN)
  #list = element("div", { class: "groups" })
  #consumers = element("tbody")
  #consumersCard
  /** @type {Map<string, any>} */
  #boxes = new Map()

  /** @param {import("/ui/page.js").Context} context @param {{stream: string, topic: string}} place */
  constructor(context, place) {
    this.#context = context
    this.#place = place
    const consumers = table("Consumers", [
      ["Consumer", ""],
      ["Partition", "number"],
      ["Committed offset", "number"],
      ["Lag", "number"],
    ])
    consumers.tBodies[0].replaceWith(this.#consumers)
    this.#consumersCard = card("Consumers without a group", consumers)
    this.#consumersCard.hidden = true
    const groups = card("Consumer groups", this.#notice, this.#list)
    groups.querySelector(".head").append(element("div", { class: "tools" }, button("New group", () => this.#create())))
    this.element = element("div", { class: "stack" }, groups, this.#consumersCard)
    this.#read()
  }

  /** @param {any} topic */
  show(topic) {
    this.#topic = topic
    if (Date.now() - this.#readAt > REFRESHED_EVERY_MS) this.#read()
    this.#show()
  }

  async #read() {
    this.#readAt = Date.now()
    try {
      const { client } = this.#context
      const [readers, groups] = await Promise.all([client.call("get_topic_readers", this.#place), client.call("get_consumer_groups", this.#place)])
      this.#groups = await Promise.all(groups.slice(0, ROWS_MAX).map((each) => client.call("get_consumer_group", { ...this.#place, group: each.id }).catch(() => each)))
      this.#readers = readers
      this.#show()
    } catch (error) {
      notice(this.#notice, sentenceOf(error))
    }
  }

  #show() {
    notice(this.#notice, this.#groups.length ? "" : "This topic has no consumer groups.")
    const partitions = this.#topic?.partitions ?? []
    const boxes = new Map(this.#groups.map((group) => [group.name, this.#boxes.get(group.name) ?? this.#box(group)]))
    this.#boxes = boxes
    arrange(this.#list, [...boxes.values()])
    for (const group of this.#groups) this.#fill(boxes.get(group.name), group, partitions)
    const consumers = this.#readers.filter(({ kind }) => kind === "consumer")
    this.#consumersCard.hidden = !consumers.length
    const ends = new Map(partitions.map((each) => [each.id, each.next_offset]))
    const rows = consumers.map((each) => {
      const behind = Math.max((ends.get(each.partition_id) ?? each.stored_offset + 1) - each.stored_offset - 1, 0)
      const figures = [each.partition_id, each.stored_offset, behind].map((value) => element("td", { class: "number" }, exact(value)))
      return element("tr", {}, element("th", { scope: "row" }, name(each.name)), ...figures)
    })
    this.#consumers.replaceChildren(...rows)
  }

  #box(group) {
    const about = element("span", { class: "quiet" })
    const rows = table(`Partitions of ${group.name}`, [
      ["Partition", ""],
      ["Member", "wide"],
      ["Committed offset", "number"],
      ["Lag", "number"],
      ["Last minute", "wide"],
    ])
    const reset = button("Reset offsets", async () => {
      const current = this.#groups.find((each) => each.name === group.name)
      if (await resetOffsets(this.#context, this.#place, current, this.#readers)) this.#read()
    })
    const remove = button("Delete", async () => {
      const form = { title: "Delete group", about: "The group is deleted with its committed offsets.", wanted: group.name, action: "Delete group" }
      if (await confirmByName(form, () => this.#context.client.call("delete_consumer_group", { ...this.#place, group: group.id }))) this.#read()
    }, "bad")
    const head = element("div", { class: "head" }, element("h3", {}, name(group.name), about), element("div", { class: "tools" }, reset, remove))
    return element("section", { class: "group" }, head, rows)
  }

  #fill(box, group, partitions) {
    const members = group.members ?? []
    const owners = new Map(members.flatMap((member) => member.partitions.map((each) => [each, member.id])))
    const stored = new Map(this.#readers.filter((each) => each.kind === "group" && each.id === group.id).map((each) => [each.partition_id, each.stored_offset]))
    const rows = partitions.map((partition) => {
      const first = partition.next_offset - partition.messages_count
      const offset = stored.get(partition.id)
      const lag = Math.max(partition.next_offset - Math.max((offset ?? -1) + 1, first), 0)
      const chart = this.#line(`${group.name} ${partition.id}`, lag)
      return element(
        "tr",
        {},
        element("th", { scope: "row" }, String(partition.id)),
        element("td", { class: "wide" }, owners.has(partition.id) ? `member ${owners.get(partition.id)}` : "none"),
        element("td", { class: "number" }, offset === undefined ? "none yet" : exact(offset)),
        element("td", { class: "number" }, count(lag)),
        element("td", { class: "wide" }, chart),
      )
    })
    box.querySelector("tbody").replaceChildren(...rows)
    const lag = this.#topic?.consumer_groups.find((each) => each.id === group.id)?.lag
    const texts = [members.length ? plural(members.length, "member") : "no members", ...(lag === undefined ? [] : [`lag ${count(lag)}`])]
    say(box.querySelector(".quiet"), texts.join(" · "))
  }

  #line(key, lag) {
    const values = this.#lags.get(key) ?? []
    values.push(lag)
    if (values.length > 60) values.shift()
    this.#lags.set(key, values)
    const chart = makeChart()
    draw(chart, values)
    return chart
  }

  async #create() {
    const control = element("input", { required: "", maxlength: "255", autocomplete: "off", spellcheck: "false" })
    const form = { title: "New consumer group", fields: [{ name: "name", label: "Name", control }], action: "Create" }
    if (await ask(form, (values) => this.#context.client.call("create_consumer_group", { ...this.#place, name: values.name }))) this.#read()
  }
}
