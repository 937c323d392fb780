/**
 * What to do next, as commands to copy: for a server without streams, and for a topic without messages.
 *
 * @module
 */

import { button, copyable, element } from "/ui/elements.js"
import { newStream } from "/ui/streams.js"

/** @param {import("/ui/page.js").Context} context */
export function nextStep(context) {
  return element(
    "div",
    { class: "next" },
    element("p", {}, "Streams contain topics, and topics contain messages. ", button("Create the first stream", () => newStream(context), "link")),
    copyable("Or with curl", [signIn(context), createWithCurl()].join("\n")),
    copyable("Or with Python", python(context, "clicks", "eu", true)),
  )
}

/** @param {import("/ui/page.js").Context} context @param {string} stream @param {string} topic */
export function firstMessage(context, stream, topic) {
  return element(
    "div",
    { class: "next" },
    element("p", {}, "Send the first message with the button Produce, or from a program:"),
    copyable("curl", [signIn(context), sendWithCurl(stream, topic)].join("\n")),
    copyable("Python", python(context, stream, topic, false)),
  )
}

/** A request for exactly one message; the token is a variable, not the one of this page. */
export function curlOf(stream, topic, partition, offset) {
  const path = `${location.origin}/streams/${encodeURIComponent(stream)}/topics/${encodeURIComponent(topic)}/messages`
  return `curl -s ${quoted(`${path}?partition_id=${partition}&kind=offset&value=${offset}&count=1`)} -H "authorization: Bearer $TOKEN"`
}

function signIn({ username }) {
  const body = JSON.stringify({ username: username || "iggy", password: "..." })
  return `TOKEN=$(curl -s ${location.origin}/users/login -H 'content-type: application/json' \\
  -d ${quoted(body)} | sed 's/.*"token":"\\([^"]*\\)".*/\\1/')`
}

function createWithCurl() {
  const json = `-H "authorization: Bearer $TOKEN" -H 'content-type: application/json'`
  return `curl -s ${location.origin}/streams ${json} \\
  -d '{"name":"clicks"}'
curl -s ${location.origin}/streams/clicks/topics ${json} \\
  -d '{"name":"eu","partitions_count":1}'
${sendWithCurl("clicks", "eu")}`
}

function sendWithCurl(stream, topic) {
  const url = `${location.origin}/streams/${encodeURIComponent(stream)}/topics/${encodeURIComponent(topic)}/messages`
  return `curl -s ${quoted(url)} -H "authorization: Bearer $TOKEN" \\
  -H 'content-type: text/plain' --data-binary 'hello'`
}

function python({ username }, stream, topic, creates) {
  const make = `    client.create_stream(${JSON.stringify(stream)})
    client.create_topic(${JSON.stringify(stream)}, ${JSON.stringify(topic)}, partitions_count=1)
`
  return `from whippet.client import connect_sync

address = "iggy+${location.protocol.slice(0, -1)}://${username || "iggy"}:PASSWORD@${location.host}"
with connect_sync(address) as client:
${creates ? make : ""}    with client.producer(${JSON.stringify(stream)}, ${JSON.stringify(topic)}) as producer:
        producer.send(b"hello")`
}

/** A word of a POSIX shell. @param {string} text */
export function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`
}
