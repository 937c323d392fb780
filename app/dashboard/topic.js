/**
 * One topic: its head, and its tabs.
 *
 * @module
 */

import { sentenceOf } from "/ui/dialog.js"
import { button, element, name, notice, say } from "/ui/elements.js"
import { placesOf } from "/ui/figures.js"
import { Find } from "/ui/find.js"
import { GroupsOfTopic } from "/ui/groups.js"
import { Messages } from "/ui/messages.js"
import { bytes, plural, rate } from "/ui/numbers.js"
import { Partitions } from "/ui/partitions.js"
import { produce } from "/ui/produce.js"
import { hrefOf, keyOf } from "/ui/router.js"
import { TopicSettings } from "/ui/topic_settings.js"

const TABS = [
  ["messages", "Messages", Messages],
  ["find", "Find", Find],
  ["partitions", "Partitions", Partitions],
  ["groups", "Consumer groups", GroupsOfTopic],
  ["settings", "Settings", TopicSettings],
]

export class Topic {
  #context
  #place
  #tab = ""
  #shown
  #topic = null
  #title = element("h2", { id: "tail-title", tabindex: "-1" })
  #about = element("p", { class: "quiet", id: "tail-about" })
  #problem = element("p", { class: "problem", role: "alert", hidden: "" })
  #produce = button("Produce", () => produce(this.#context, this.#place, (this.#topic?.partitions ?? []).map(({ id }) => id)))
  #links = element("nav", { class: "tabs", "aria-label": "Topic" })
  #body = element("div")

  /** @param {import("/ui/page.js").Context} context @param {import("/ui/router.js").Place} address */
  constructor(context, address) {
    const [, stream, topic] = address.path
    this.#context = context
    this.#place = { stream, topic }
    this.title = `${topic} – ${stream}`
    const streams = element("a", { href: hrefOf(["streams"], { filter: `${stream} / ` }) }, name(stream))
    this.#title.append(streams, " / ", name(topic))
    const head = element("div", { class: "topic-head" }, this.#title, this.#about, this.#produce)
    this.element = element("div", { class: "topic-view" }, head, this.#links, this.#problem, this.#body)
    context.figures.narrow(this.#place)
    this.change(address)
    this.#check()
  }

  /** The part of the address that another topic does not share. */
  static keyOf({ path }) {
    return JSON.stringify(path.slice(0, 3))
  }

  change({ path, query }) {
    const [tab, , View] = TABS.find(([each]) => each === path[3]) ?? TABS[0]
    if (tab === this.#tab && this.#shown.change) this.#shown.change(query)
    else {
      this.#shown?.leave?.()
      this.#tab = /** @type {string} */ (tab)
      this.#shown = new /** @type {any} */ (View)(this.#context, this.#place, query)
      this.#body.replaceChildren(this.#shown.element)
      if (this.#topic) this.#shown.show?.(this.#topic)
    }
    const { stream, topic } = this.#place
    const links = TABS.map(([each, text]) => {
      const link = element("a", { href: hrefOf(["streams", stream, topic, /** @type {string} */ (each)]) }, /** @type {string} */ (text))
      if (each === tab) link.setAttribute("aria-current", "page")
      return link
    })
    this.#links.replaceChildren(...links)
  }

  /** @param {any} sample */
  show(sample) {
    const { stream, topic } = this.#place
    const found = placesOf(sample).find((each) => is(each.stream, stream) && is(each.topic, topic))
    this.#topic = found?.topic ?? null
    if (!this.#topic) return
    const { partitions, messages_count: messages, size_bytes: size, messages_per_second: perSecond } = this.#topic
    say(this.#about, [plural(partitions.length, "partition"), plural(messages, "message"), bytes(size), `${rate(perSecond)}/s`].join(" · "))
    this.#shown.show?.(this.#topic, found.stream)
  }

  leave() {
    this.#shown.leave?.()
  }

  focus() {
    this.#title.focus({ preventScroll: true })
  }

  /** A topic that does not exist has nothing to do in it. */
  async #check() {
    try {
      await this.#context.client.call("get_topic", this.#place)
    } catch (error) {
      if (error.code === "disconnected" || error.code === "unauthorized") return
      notice(this.#problem, sentenceOf(error))
      this.#produce.hidden = this.#links.hidden = true
      this.#shown.leave?.()
      this.#body.replaceChildren(element("p", { class: "notice" }, element("a", { href: hrefOf(["streams"]) }, "All streams and topics")))
    }
  }
}

function is(thing, key) {
  return keyOf(thing) === key || thing.name === key
}
