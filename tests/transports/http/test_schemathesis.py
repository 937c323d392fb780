"""Whatever can be asked according to the OpenAPI document, and what cannot, is answered as the document says.

schemathesis makes it up, for a while: no 5xx, no status that the operation does not document, no body that does not fit
its schema, and nothing is refused that the document allows.
`make schemathesis SECONDS=600` for long; WHIPPET_SCHEMATHESIS_SEED repeats a run.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import sys
from pathlib import Path

import msgspec
import pytest
import uvloop

from tests.support.sizes import sized
from tests.transports.http.support.serving import Serving, serving
from whippet.app.access.permissions import ALL
from whippet.app.model.identity import UserStatus

SEED = int(os.environ.get("WHIPPET_SCHEMATHESIS_SEED", "0")) or random.SystemRandom().getrandbits(32)
DOCUMENT = Path(__file__).parents[3] / "openapi" / "openapi.json"
SUPPORT = Path(__file__).parent / "support"
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "unsupported_method",
    "allow_header_conformance",
    "what_the_document_allows_is_accepted",
    "ignored_auth",
)
LONG_S = 60
REQUEST_S = 60
GRACE_S = 180
"""Of what was begun when its time was over."""


@sized("seconds", 15, long=LONG_S, variable="WHIPPET_SCHEMATHESIS_SECONDS")
def test_every_answer_is_one_that_the_document_knows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, seconds: int
) -> None:
    print(f"WHIPPET_SCHEMATHESIS_SEED={SEED} WHIPPET_SCHEMATHESIS_SECONDS={seconds}")  # noqa: T201

    async def main() -> tuple[int | None, str]:
        async with asyncio.timeout(seconds + GRACE_S), serving(tmp_path / "data") as world:
            return await _prove(world, tmp_path, seconds)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code, said = runner.run(main())
    assert code == 0, f"seed {SEED}:\n{said}"
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == []
    answered = json.loads((tmp_path / "answered.json").read_text())
    for operation, statuses in answered.items():
        print(f"{operation:100} {dict(sorted(statuses.items()))}")  # noqa: T201
    operations = {f"{method.upper()} {path}" for path, each in _document()["paths"].items() for method in each}
    assert answered.keys() == operations - {TAIL}
    succeeded = {name for name, statuses in answered.items() if any(status.startswith("2") for status in statuses)}
    rest = answered.keys() - succeeded
    # In a few seconds there is not enough luck for that.
    assert len(rest) < len(answered) / 10 or seconds < LONG_S, f"seed {SEED}: {rest} have not succeeded once"


TAIL = "GET /streams/{stream}/topics/{topic}/messages/tail"
"""An answer without an end; test_tails is about it."""


def _document() -> dict[str, dict[str, dict[str, object]]]:
    found: dict[str, dict[str, dict[str, object]]] = msgspec.json.decode(DOCUMENT.read_bytes())
    return found


async def _prove(world: Serving, folder: Path, seconds: int) -> tuple[int | None, str]:
    gateway = world.world.gateway
    for name in ("bob", "prover"):
        prover = await gateway.users.create(name, "secret", UserStatus.ACTIVE, ALL)
    token = await gateway.tokens.create(prover, "prover's", 0)
    where = f"127.0.0.1:{world.server.address.port}"
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(SUPPORT / "schemathesis.toml")),
        *("run", str(DOCUMENT), "--url", f"http://{where}", "-H", f"Authorization: Bearer {token}"),
        *("--checks", ",".join(CHECKS), "--exclude-operation-id", "tail_messages", "--continue-on-failure"),
        *("--seed", str(SEED), "--max-time", str(seconds), "--generation-database", "none", "--no-color"),
        # A topic of a thousand partitions takes its time on a machine that has other things to do.
        *("--request-timeout", str(REQUEST_S)),
    ]
    environment = os.environ | {
        "SCHEMATHESIS_HOOKS": str(SUPPORT / "schemathesis_hooks.py"),
        "WHIPPET_ADDRESS": where,
        "WHIPPET_ROOT": world.token,
        "WHIPPET_PROVER": token,
        "WHIPPET_ANSWERED": str(folder / "answered.json"),
        "NO_PROXY": "127.0.0.1",
    }
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode, said.decode(errors="replace")
