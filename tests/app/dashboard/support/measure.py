"""`make dashboard-bench`: measures the page in Chromium.

It reports the size of the files as they are sent, the time from a reload to the first figures, and how smoothly the
page moves: frames per second, the longest pause between two frames and the heap, on the overview and on a topic to
which thousands of messages per second are sent, beside thousands of other topics.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Page, expect

from tests.app.dashboard.support.chromium import a_page, chromium, until
from tests.app.dashboard.support.serving import Server, serving
from tests.app.dashboard.support.visits import go_to, signed_in
from whippet.app import dashboard

SECONDS = 10
BATCH = 250
FRAMES = """async (seconds) => {
  const frames = [performance.now()]
  while (frames.at(-1) - frames[0] < seconds * 1000) frames.push(await new Promise(requestAnimationFrame))
  const pauses = frames.slice(1).map((at, i) => at - frames[i])
  const heap = performance.memory?.usedJSHeapSize ?? 0
  return { perSecond: pauses.length / ((frames.at(-1) - frames[0]) / 1000), longest: Math.max(...pauses), heap }
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--rate", type=int, default=5_000, help="messages per second")
    given = parser.parse_args()
    packed = sum(len(gzip.compress(octets)) for octets in dashboard.files().values())
    print(f"size of all files, compressed: {packed / 1000:.1f} kB")
    with (
        tempfile.TemporaryDirectory() as folder,
        chromium() as browser,
        serving(Path(folder)) as server,
        a_page(browser, viewport={"width": 1280, "height": 860}) as page,
    ):
        server.make("many", "busy", partitions=4)
        signed_in(page, server)
        print(f"first view of an almost empty server: {_first_view(page):.0f} ms")
        for start in range(0, given.topics, 100):
            server.make(f"stream {start}", *[f"topic {start + number}" for number in range(100)])
        print(f"first view with {given.topics} topics: {_first_view(page):.0f} ms")
        with _sending(server, given.rate) as sent:
            for view in ("#/", "#/streams", "#/streams/many/busy"):
                go_to(page, view)
                page.wait_for_timeout(2000)
                before = sent[0]
                found: Any = page.evaluate(FRAMES, SECONDS)
                frames = f"{found['perSecond']:.0f} frames/s, longest pause {found['longest']:.0f} ms"
                meanwhile = f"while {(sent[0] - before) / SECONDS:.0f} messages/s were sent"
                print(f"{view}: {frames}, heap {found['heap'] / 1e6:.0f} MB, {meanwhile}")


def _first_view(page: Page) -> float:
    page.reload()
    until(page, "document.querySelector('table[aria-label=\"Busiest topics\"] tbody tr')")
    expect(page.locator("#connection")).to_have_text("Live")
    found: float = page.evaluate("performance.now()")
    return found


@contextlib.contextmanager
def _sending(server: Server, rate: int) -> Iterator[list[int]]:
    """Sends until the end of the block; yields how many messages were sent so far."""
    sent, over = [0], threading.Event()
    body = "\n".join(f'{{"order": {number}, "customer": {{"name": "Ann"}}}}' for number in range(BATCH))
    headers = {"content-type": "text/plain", "authorization": f"Bearer {server.token}"}

    def run() -> None:
        with httpx.Client(base_url=server.url, trust_env=False, headers=headers) as http:
            while not over.wait(BATCH / rate):
                http.post("/streams/many/topics/busy/messages", content=body).raise_for_status()
                sent[0] += BATCH

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield sent
    finally:
        over.set()
        thread.join()


if __name__ == "__main__":
    main()
