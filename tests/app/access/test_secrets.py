"""Plain passwords and tokens are in no file, no log line and no error, whatever is done with them."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.app.access.support.world import SECOND, Person, world
from tests.support.clocks import Seconds
from tests.support.running import run
from whippet.app.access.throttle import Throttle
from whippet.app.commands import requests
from whippet.app.errors import CommandError
from whippet.app.model.identity import UserStatus

ROOTS, ALICES, NEW, GUESS = "rootZroot-1", "aliceZalice-2", "newZalice-3", "guessZguess-4"


async def test_no_secret_is_written_anywhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    texts: list[str] = []
    secrets = [ROOTS, ALICES, NEW, GUESS]

    async def ask_and_note(person: Person, request: requests.Request) -> None:
        try:
            await person.execute(request)
        except CommandError as error:
            texts.append(repr(error))

    with caplog.at_level(logging.DEBUG):
        time = Seconds()
        environment = {"IGGY_ROOT_USERNAME": "root", "IGGY_ROOT_PASSWORD": ROOTS}
        async with world(tmp_path, environment=environment, throttle=Throttle(clock=time, sleep=time.sleep)) as made:
            root = made.person()
            await root.log_in("root", ROOTS)
            await root.execute(requests.CreateUser("alice", ALICES, UserStatus.ACTIVE, None))
            alice = made.person()
            await alice.log_in("alice", ALICES)
            for expiry in (0, SECOND):
                token = (await alice.execute(requests.CreatePersonalAccessToken(f"token{expiry}", expiry))).token
                secrets.append(token)
                await made.person().execute(requests.LoginWithPersonalAccessToken(token))
            made.clock.now += SECOND
            await ask_and_note(made.person(), requests.LoginWithPersonalAccessToken(secrets[-1]))
            await made.gateway.personal_tokens.remove_expired()
            await ask_and_note(made.person(), requests.LoginWithPersonalAccessToken(secrets[-1]))
            await alice.execute(requests.ChangePassword("alice", ALICES, NEW))
            await ask_and_note(alice, requests.ChangePassword("alice", GUESS, NEW))
            for _ in range(30):
                await ask_and_note(made.person("10.9.9.9"), requests.LoginUser("alice", GUESS))
                await ask_and_note(made.person("10.9.9.9"), requests.LoginUser("nobody", GUESS))
                await ask_and_note(made.person("10.9.9.9"), requests.LoginUser("alice", GUESS * 20))
            await ask_and_note(root, requests.CreateUser("alice", GUESS, UserStatus.ACTIVE, None))
        async with world(tmp_path, environment={}) as made:
            await made.person().log_in("alice", NEW)
            secrets.append("made up at the first start only")
    assert len(texts) > 50
    assert caplog.records
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.parent.name for path in files} >= {"users", "tokens"}
    for secret in secrets:
        assert not [path for path in files if secret.encode() in path.read_bytes()]
        assert not [record for record in caplog.records if secret in record.getMessage() + str(record.__dict__)]
        assert not [text for text in texts if secret in text]


def test_a_generated_root_password_is_in_no_file_and_no_log_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> str:
        async with world(tmp_path, environment={}) as made:
            assert made.gateway.users.generated_root_password is not None
            return made.gateway.users.generated_root_password

    with caplog.at_level(logging.DEBUG):
        password = run(main())
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and password.encode() in path.read_bytes()]
    assert password not in caplog.text


async def test_documents_of_users_are_not_readable_for_other_accounts_of_the_machine(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.gateway.personal_tokens.create(made.gateway.users.root, "build", 0)
    for path in (tmp_path / "users" / "0.json", tmp_path / "tokens" / "0.json"):
        assert path.stat().st_mode & 0o007 == 0
