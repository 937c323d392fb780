/**
 * "Where is my message?": searches a topic on the server, a piece at a time, within a budget that is shown and can be
 * extended.
 *
 * @module
 */

import { sentenceOf } from "/ui/dialog.js"
import { button, element, labelled, notice, say, select } from "/ui/elements.js"
import { MessageRows } from "/ui/message_rows.js"
import { bytes, dayAndTime, exact } from "/ui/numbers.js"
import { hrefOf } from "/ui/router.js"

/** Messages that are examined before the user is asked whether to go on. */
const BUDGET = 100_000
/** Messages of one request: enough for many a topic, and soon over. */
const PIECE = 20_000
const MATCHES_MAX = 200
/** What is searched for, with an example. */
const KINDS = {
  text: ["text in the payload", "order 8273450"],
  where: ["a JSON condition", '$.customer.name == "Ann"'],
  id: ["a message id", "a number or a UUID"],
  header: ["a user header", "kind = new"],
  key: ["a key: all messages of its partition", "customer 7"],
  any: ["anything, in a time range", ""],
}
const ORDERS = [
  ["newest", "newest first"],
  ["oldest", "oldest first"],
]

export class Find {
  #context
  #place
  #rows
  /** Which search is current. */
  #turn = 0
  #query = {}
  #cursor
  #totals = { examined: 0, bytes: 0, matches: 0, remaining: 0, reached: null, left: 0 }
  #kind = select(Object.entries(KINDS).map(([kind, [label]]) => /** @type {[string, string]} */ ([kind, label])))
  #what = element("input", { autocomplete: "off", spellcheck: "false", maxlength: "1000", "data-search": "" })
  #since = element("input", { type: "datetime-local", step: "1" })
  #until = element("input", { type: "datetime-local", step: "1" })
  #order = select(/** @type {any} */ (ORDERS))
  #number = element("input", { inputmode: "numeric", pattern: "[0-9]*", placeholder: "all", size: "4" })
  #go = element("button", { class: "primary" }, "Search")
  #stop = button("Stop", () => this.#end())
  #more = button("Continue", () => this.#goOn())
  #progress = element("progress", { max: "1", value: "0", "aria-label": "Messages examined" })
  #state = element("p", { class: "state", role: "status", id: "find-state" })
  #problem = element("p", { class: "problem", role: "alert", hidden: "" })

  /** @param {import("/ui/page.js").Context} context @param {{stream: string, topic: string}} place @param {URLSearchParams} query */
  constructor(context, place, query) {
    this.#context = context
    this.#place = place
    this.#rows = new MessageRows(context.client, place)
    const form = element(
      "form",
      { class: "controls" },
      labelled("Search for", this.#kind),
      labelled("Value", this.#what, "grows"),
      labelled("Since", this.#since),
      labelled("Until", this.#until),
      labelled("Order", this.#order),
      labelled("Partition", this.#number),
      this.#go,
      this.#stop,
    )
    const progress = element("div", { class: "controls" }, this.#progress, this.#state, this.#more)
    this.element = element("section", { class: "card", "aria-label": "Find" }, form, this.#problem, progress, this.#rows.element)
    form.addEventListener("submit", (event) => {
      event.preventDefault()
      this.#submit()
    })
    this.#kind.addEventListener("change", () => this.#showKind())
    this.change(query)
  }

  /** @param {URLSearchParams} query */
  change(query) {
    this.#end()
    this.#rows.clear()
    this.#kind.value = Object.hasOwn(KINDS, query.get("by") ?? "") ? query.get("by") : "text"
    this.#what.value = query.get("what") ?? ""
    this.#since.value = query.get("since") ?? ""
    this.#until.value = query.get("until") ?? ""
    this.#order.value = query.get("order") === "oldest" ? "oldest" : "newest"
    this.#number.value = query.get("partition") ?? ""
    this.#showKind()
    this.#progress.hidden = this.#more.hidden = true
    say(this.#state, "The server examines one message after the other: a time range or a partition makes the search faster.")
    if (query.has("by")) this.#begin()
  }

  leave() {
    this.#turn++
    this.#rows.leave()
  }

  #showKind() {
    const [, example] = KINDS[this.#kind.value]
    this.#what.placeholder = example
    this.#what.required = this.#kind.value !== "any"
    this.#what.closest(".field").hidden = this.#kind.value === "any"
  }

  /** Makes the search part of the address, so that a link repeats it. */
  #submit() {
    const { stream, topic } = this.#place
    const what = this.#kind.value === "any" ? "" : this.#what.value
    const query = { by: this.#kind.value, what, since: this.#since.value, until: this.#until.value, order: this.#order.value, partition: this.#number.value }
    const href = hrefOf(["streams", stream, topic, "find"], query)
    if (href === location.hash) this.#begin()
    else location.hash = href
  }

  #begin() {
    this.#rows.clear()
    this.#cursor = undefined
    this.#totals = { examined: 0, bytes: 0, matches: 0, remaining: 0, reached: null, left: BUDGET }
    this.#query = {
      ...conditionOf(this.#kind.value, this.#what.value.trim()),
      ...(this.#since.value && { since: microseconds(this.#since.value) }),
      ...(this.#until.value && { until: microseconds(this.#until.value) + 999_999 }),
      ...(this.#number.value && this.#kind.value !== "key" && { partition: Number(this.#number.value) }),
      order: this.#order.value,
    }
    this.#search()
  }

  #goOn() {
    this.#totals.left = BUDGET
    this.#search()
  }

  #end() {
    this.#turn++
    this.#stop.hidden = true
    this.#go.disabled = false
    this.#more.hidden = this.#cursor === undefined
    if (this.#cursor !== undefined) this.#show(false)
  }

  async #search() {
    const turn = ++this.#turn
    const totals = this.#totals
    notice(this.#problem, "")
    this.#progress.hidden = this.#stop.hidden = false
    this.#more.hidden = this.#go.disabled = true
    try {
      do {
        const budget = Math.min(PIECE, totals.left)
        const found = await this.#context.client.call("search_messages", { ...this.#place, ...this.#query, budget, limit: 50, ...(this.#cursor && { cursor: this.#cursor }) })
        if (turn !== this.#turn) return
        totals.examined += found.examined
        totals.bytes += found.examined_bytes
        totals.left -= found.examined
        totals.matches += found.matches.length
        totals.remaining = found.remaining
        totals.reached = found.reached ?? totals.reached
        this.#cursor = found.cursor ?? undefined
        this.#rows.append(found.matches)
        this.#show(true)
      } while (this.#cursor && totals.left > 0 && totals.matches < MATCHES_MAX)
    } catch (error) {
      if (turn === this.#turn) notice(this.#problem, sentenceOf(error))
    }
    if (turn === this.#turn) this.#end()
    if (turn + 1 === this.#turn) this.#show(false)
  }

  #show(isRunning) {
    const { examined, bytes: size, matches, remaining, reached } = this.#totals
    this.#progress.value = examined + remaining ? examined / (examined + remaining) : 1
    const order = this.#order.value === "oldest" ? "up to" : "back to"
    const texts = [
      `${matches === 0 ? "No match" : matches === 1 ? "1 match" : `${exact(matches)} matches`} in ${examined === 1 ? "1 message" : `${exact(examined)} messages`} (${bytes(size)})`,
      reached ? `${order} ${dayAndTime(reached)}` : "",
      remaining ? `${exact(remaining)} not examined` : "everything was examined",
    ]
    say(this.#state, `${texts.filter(Boolean).join(", ")}.`)
    say(this.#more, `Examine ${exact(Math.min(BUDGET, remaining))} more`)
    this.#more.hidden = isRunning || !remaining
    if (!isRunning) this.#context.announce(this.#state.textContent ?? "")
  }
}

/** @param {string} kind @param {string} what */
function conditionOf(kind, what) {
  if (kind === "any") return {}
  if (kind === "id") return { message_id: what }
  if (kind !== "header") return { [kind]: what }
  const [header, ...value] = what.split("=").map((each) => each.trim())
  return value.length ? { header, value: value.join("=") } : { header }
}

function microseconds(localTime) {
  return new Date(localTime).getTime() * 1000
}
