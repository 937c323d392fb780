"""Requests that the OpenAPI document allows, and others, get the responses that the document describes.

schemathesis generates the requests: no 5xx, no status that the operation does not document, no body that does not match
its schema, and nothing is refused that the document allows.
A run of the test suite is repeatable. `make schemathesis SECONDS=600` draws a new seed, and WHIPPET_SCHEMATHESIS_SEED
repeats its run.
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

from tests.support.running import HANGS_S
from tests.support.sizes import sized
from tests.transports.http.support.serving import Serving, serving
from whippet.app.access.permissions import ALL
from whippet.app.model.identity import UserStatus

SECONDS = int(os.environ.get("WHIPPET_SCHEMATHESIS_SECONDS", "0"))
SEED = int(os.environ.get("WHIPPET_SCHEMATHESIS_SEED", "0")) or (
    random.SystemRandom().getrandbits(32) if SECONDS else 1
)
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
FEW, MANY = 2, 15
"""Examples for each operation."""
REQUEST_S = 60


@sized("examples", FEW, long=MANY, variable="WHIPPET_SCHEMATHESIS_SECONDS")
def test_every_response_is_one_that_the_document_describes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, examples: int
) -> None:
    print(f"WHIPPET_SCHEMATHESIS_SEED={SEED} WHIPPET_SCHEMATHESIS_SECONDS={SECONDS}")  # noqa: T201

    async def main() -> tuple[int | None, str]:
        # Syncing each of some thousand folders would take most of the time.
        unsynced = {"catalog_syncs": False}
        async with asyncio.timeout(SECONDS + HANGS_S), serving(tmp_path / "data", store=unsynced) as world:
            return await _prove(world, tmp_path, examples)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code, output = runner.run(main())
    assert code == 0, f"seed {SEED}:\n{output}"
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == []
    answered = json.loads((tmp_path / "answered.json").read_text())
    for operation, statuses in answered.items():
        print(f"{operation:100} {dict(sorted(statuses.items()))}")  # noqa: T201
    operations = {f"{method.upper()} {path}" for path, each in _document()["paths"].items() for method in each}
    assert answered.keys() == operations - {TAIL}
    succeeded = {name for name, statuses in answered.items() if any(status.startswith("2") for status in statuses)}
    failed = answered.keys() - succeeded
    # A few examples are not enough for every operation to succeed once.
    assert len(failed) < len(answered) / 10 or examples < MANY, f"seed {SEED}: {failed} have not succeeded once"


TAIL = "GET /streams/{stream}/topics/{topic}/messages/tail"
"""An endless response; test_tails covers it."""


def _document() -> dict[str, dict[str, dict[str, object]]]:
    found: dict[str, dict[str, dict[str, object]]] = msgspec.json.decode(DOCUMENT.read_bytes())
    return found


def _amount(examples: int) -> tuple[str, ...]:
    """Runs of the test suite are bounded by work, so that a slow machine checks as much as a fast one."""
    if SECONDS:
        return "--max-time", str(SECONDS)
    phases = "fuzzing" if examples < MANY else "coverage,fuzzing,stateful"
    return "--phases", phases, "--max-examples", str(examples)


async def _prove(world: Serving, folder: Path, examples: int) -> tuple[int | None, str]:
    gateway = world.world.gateway
    for name in ("bob", "prover"):
        prover = await gateway.users.create(name, "secret", UserStatus.ACTIVE, ALL)
    token = await gateway.personal_tokens.create(prover, "prover's", 0)
    where = f"127.0.0.1:{world.server.address.port}"
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(SUPPORT / "schemathesis.toml")),
        *("run", str(DOCUMENT), "--url", f"http://{where}", "-H", f"Authorization: Bearer {token}"),
        *("--checks", ",".join(CHECKS), "--exclude-operation-id", "tail_messages", "--continue-on-failure"),
        *("--seed", str(SEED), *_amount(examples), "--generation-database", "none", "--no-color"),
        # Creating a topic of a thousand partitions is slow on a busy machine.
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
        reply, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode, reply.decode(errors="replace")
