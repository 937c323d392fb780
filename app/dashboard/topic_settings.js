/**
 * The settings of a topic, and what cannot be undone.
 *
 * @module
 */

import { sentenceOf } from "/ui/dialog.js"
import { button, card, element, notice } from "/ui/elements.js"
import { bytes, dayAndTime } from "/ui/numbers.js"
import { changeTopic, deleteTopic, expiryText, purgeTopic, sizeLimit } from "/ui/topic_forms.js"

/** Options that have a line of their own. */
const SHOWN = new Set(["compression_algorithm", "max_topic_size", "message_expiry"])

export class TopicSettings {
  #context
  #place
  #found = null
  #notice = element("p", { class: "notice" }, "Loading.")
  #facts = element("dl", { class: "facts" })

  /** @param {import("/ui/page.js").Context} context @param {{stream: string, topic: string}} place */
  constructor(context, place) {
    this.#context = context
    this.#place = place
    const act = (form) => async () => {
      if (this.#found && (await form(context, place, this.#found))) this.#read()
    }
    const tools = element(
      "div",
      { class: "tools" },
      button("Edit", act(changeTopic)),
      button("Purge", act(purgeTopic), "bad"),
      button("Delete", act(deleteTopic), "bad"),
    )
    this.element = card("Settings", this.#notice, this.#facts)
    this.element.querySelector(".head").append(tools)
    this.#read()
  }

  async #read() {
    try {
      this.#found = await this.#context.client.call("get_topic", this.#place)
      this.#show(this.#found)
      notice(this.#notice, "")
    } catch (error) {
      notice(this.#notice, sentenceOf(error))
    }
  }

  #show(found) {
    const others = Object.entries(found.options).filter(([key]) => !SHOWN.has(key))
    const options = others.map(([key, { value, explicit }]) => [key, `${value}${explicit ? ", set for this topic" : ""}`])
    const facts = [
      ["Id", String(found.id)],
      ["Created", dayAndTime(found.created_at)],
      ["Messages are deleted after", expiryText(found.message_expiry)],
      ["Maximum size", sizeLimit(found.max_topic_size) ?? bytes(Number(found.max_topic_size))],
      ["Compression", found.compression_algorithm],
      ["On disk", bytes(found.disk_bytes)],
      ...options,
    ]
    this.#facts.replaceChildren(...facts.map(([term, text]) => element("div", {}, element("dt", {}, term), element("dd", {}, text))))
  }
}
