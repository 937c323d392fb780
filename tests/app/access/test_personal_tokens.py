"""Personal access tokens: random, stored as hashes only, and gone when they expire or their user is deleted."""

from __future__ import annotations

import asyncio
import base64
import functools
import logging
from pathlib import Path

import msgspec
import pytest
from blake3 import blake3

from tests.app.access.support.world import SECOND, refusal, refused, world
from whippet.app.access.personal_tokens import TIME_MAX
from whippet.app.errors import Code
from whippet.app.model.identity import UserStatus

ACTIVE = UserStatus.ACTIVE


async def test_a_token_is_50_random_bytes_in_base64_and_only_its_hash_is_stored(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        tokens, root = made.gateway.personal_tokens, made.gateway.users.root
        texts = [await tokens.create(root, f"token{number}", 0) for number in range(3)]
        assert len(set(texts)) == 3
        for number, text in enumerate(texts):
            assert len(text) == 68
            assert len(base64.b64decode(text, validate=True)) == 50
            content = (tmp_path / "tokens" / f"{number}.json").read_text()
            assert blake3(text.encode()).hexdigest() in content
            assert text not in content
            assert tokens.owner(text, made.gateway.users) is root


@pytest.mark.parametrize("name", ["ab", "a" * 31, "é" * 16, ""])
async def test_names_have_3_to_30_bytes(tmp_path: Path, name: str) -> None:
    async with world(tmp_path) as made:
        tokens, root = made.gateway.personal_tokens, made.gateway.users.root
        assert await refusal(tokens.create(root, name, 0)) == Code.INVALID_PERSONAL_ACCESS_TOKEN_NAME
        for allowed in ("abc", "a" * 30, "é" * 15):
            await tokens.create(root, allowed, 0)


async def test_a_token_name_is_unique_for_each_user(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        tokens, users = made.gateway.personal_tokens, made.gateway.users
        alice = await users.create("alice", "secret", ACTIVE, None)
        await tokens.create(users.root, "build", 0)
        assert await refusal(tokens.create(users.root, "build", 0)) == Code.PERSONAL_ACCESS_TOKEN_ALREADY_EXISTS
        text = await tokens.create(alice, "build", 0)
        assert tokens.owner(text, users) is alice
        await tokens.delete(users.root, "build")
        await tokens.create(users.root, "build", 0)


async def test_the_number_of_tokens_of_a_user_is_limited_for_concurrent_requests_too(tmp_path: Path) -> None:
    async with world(tmp_path, tokens_max=3) as made:
        tokens, root = made.gateway.personal_tokens, made.gateway.users.root
        asked = [tokens.create(root, f"token{number}", 0) for number in range(5)]
        outcomes = await asyncio.gather(*(refusal(one) for one in asked))
        assert sorted(outcomes, key=str) == [*[Code.PERSONAL_ACCESS_TOKENS_LIMIT_REACHED] * 2, None, None, None]
        assert await refusal(tokens.create(root, "token0", 0)) == Code.PERSONAL_ACCESS_TOKENS_LIMIT_REACHED
        await tokens.delete(root, tokens.of(root)[0].name)
        await tokens.create(root, "another", 0)


async def test_an_expired_token_is_refused_and_keeps_its_name_until_it_is_removed(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        tokens, users = made.gateway.personal_tokens, made.gateway.users
        start = made.clock.now
        text = await tokens.create(users.root, "short", 10 * SECOND)
        kept = await tokens.create(users.root, "kept", 0)
        assert [(token.name, token.expires_at) for token in tokens.of(users.root)] == [
            ("kept", 0),
            ("short", start + 10 * SECOND),
        ]
        made.clock.now = start + 10 * SECOND - 1
        await tokens.remove_expired()
        assert tokens.owner(text, users) is users.root
        made.clock.now += 1
        assert refused(lambda: tokens.owner(text, users)) == Code.PERSONAL_ACCESS_TOKEN_EXPIRED
        assert [token.name for token in tokens.of(users.root)] == ["kept", "short"]
        assert await refusal(tokens.create(users.root, "short", 0)) == Code.PERSONAL_ACCESS_TOKEN_ALREADY_EXISTS
        await tokens.remove_expired()
        assert refused(lambda: tokens.owner(text, users)) == Code.RESOURCE_NOT_FOUND
        assert tokens.owner(kept, users) is users.root
        await tokens.create(users.root, "short", 0)
        assert len(list((tmp_path / "tokens").iterdir())) == 2


async def test_removing_a_token_keeps_the_others_of_its_user(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with world(tmp_path) as made:
        tokens, root = made.gateway.personal_tokens, made.gateway.users.root
        for name, expiry in (("one", 0), ("two", 0), ("short", SECOND), ("shorter", 1)):
            await tokens.create(root, name, expiry)
        await tokens.delete(root, "one")
        assert [token.name for token in tokens.of(root)] == ["short", "shorter", "two"]
        await tokens.remove_expired()
        with caplog.at_level(logging.INFO):
            made.clock.now += SECOND
            await tokens.remove_expired()
            await tokens.remove_expired()
        assert [record.getMessage() for record in caplog.records] == ["removed 2 expired personal access tokens"]
        assert [token.name for token in tokens.of(root)] == ["two"]
        await tokens.delete(root, "two")
        assert tokens.of(root) == []
        assert tokens._of_user == {}


async def test_deleting_a_user_removes_only_their_tokens(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        tokens, users = made.gateway.personal_tokens, made.gateway.users
        alice = await users.create("alice", "secret", ACTIVE, None)
        texts = [await tokens.create(alice, name, 0) for name in ("one", "two", "three")]
        kept = await tokens.create(users.root, "one", 0)
        await tokens.forget_user(alice)
        assert tokens.of(alice) == []
        for text in texts:
            assert refused(functools.partial(tokens.owner, text, users)) == Code.RESOURCE_NOT_FOUND
        assert tokens.owner(kept, users) is users.root
        assert len(list((tmp_path / "tokens").iterdir())) == 1


async def test_the_token_of_an_inactive_user_is_refused_with_that_reason(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        tokens, users = made.gateway.personal_tokens, made.gateway.users
        alice = await users.create("alice", "secret", UserStatus.INACTIVE, None)
        text = await tokens.create(alice, "build", 0)
        assert refused(lambda: tokens.owner(text, users)) == Code.USER_INACTIVE


async def test_a_token_is_revoked_by_its_text_and_unknown_texts_change_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        tokens, users = made.gateway.personal_tokens, made.gateway.users
        one, two = [await tokens.create(users.root, name, 0) for name in ("one", "two")]
        await tokens.revoke("no token")
        await tokens.revoke(one)
        await tokens.revoke(one)
        assert refused(lambda: tokens.owner(one, users)) == Code.RESOURCE_NOT_FOUND
        assert tokens.owner(two, users) is users.root


async def test_void_tokens_are_removed_and_those_of_unknown_users_stay(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        tokens, users = made.gateway.personal_tokens, made.gateway.users
        alice = await users.create("alice", "secret", ACTIVE, None)
        bob = await users.create("bob", "secret", ACTIVE, None)
        of_alice, of_bob, of_root = [await tokens.create(user, "build", 0) for user in (alice, bob, users.root)]
        await users.end_sessions("alice", end_tokens=True)
        assert tokens.of(alice) == []
        assert refused(lambda: tokens.owner(of_alice, users)) == Code.RESOURCE_NOT_FOUND
    kept = tmp_path / "kept.json"
    (tmp_path / "users" / "2.json").rename(kept)
    async with world(tmp_path) as made:
        tokens, users = made.gateway.personal_tokens, made.gateway.users
        await tokens.forget_void(users)
        assert sorted(path.name for path in (tmp_path / "tokens").iterdir()) == ["1.json", "2.json"]
        assert tokens.owner(of_root, users) is users.root
        assert refused(lambda: tokens.owner(of_bob, users)) == Code.RESOURCE_NOT_FOUND
    kept.rename(tmp_path / "users" / "2.json")
    async with world(tmp_path) as made:
        assert made.gateway.personal_tokens.owner(of_bob, made.gateway.users).username == "bob"


async def test_documents_without_an_epoch_belong_to_the_first_one(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        text = await made.gateway.personal_tokens.create(made.gateway.users.root, "build", 0)
    for path, names in (("tokens/0.json", ["epoch"]), ("users/0.json", ["session_epoch", "token_epoch"])):
        document = msgspec.json.decode((tmp_path / path).read_bytes())
        assert [document.pop(name) for name in names] == [0] * len(names)
        (tmp_path / path).write_bytes(msgspec.json.encode(document))
        async with world(tmp_path) as made:
            assert made.gateway.personal_tokens.owner(text, made.gateway.users) is made.gateway.users.root
            assert made.gateway.users.root.login.epoch == 0


@pytest.mark.parametrize("expiry", [0, TIME_MAX])
async def test_a_token_without_an_expiry_never_expires(tmp_path: Path, expiry: int) -> None:
    async with world(tmp_path) as made:
        tokens, users = made.gateway.personal_tokens, made.gateway.users
        text = await tokens.create(users.root, "forever", expiry)
        assert tokens.of(users.root)[0].expires_at == 0
        made.clock.now = TIME_MAX
        assert tokens.owner(text, users) is users.root


async def test_a_huge_expiry_still_fits_into_the_protocol(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        tokens, users = made.gateway.personal_tokens, made.gateway.users
        await tokens.create(users.root, "long", TIME_MAX - 1)
        assert made.clock.now < tokens.of(users.root)[0].expires_at <= TIME_MAX


async def test_users_see_only_their_own_tokens_sorted_by_name(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        tokens, users = made.gateway.personal_tokens, made.gateway.users
        alice = await users.create("alice", "secret", ACTIVE, None)
        for name in ("one", "two", "three"):
            await tokens.create(alice, name, 0)
        await tokens.create(users.root, "four", 0)
        assert [token.name for token in tokens.of(alice)] == ["one", "three", "two"]
        assert await refusal(tokens.delete(alice, "four")) == Code.RESOURCE_NOT_FOUND
        assert await refusal(tokens.delete(alice, "nothing")) == Code.RESOURCE_NOT_FOUND
        assert [token.name for token in tokens.of(users.root)] == ["four"]


async def test_the_refusal_of_a_token_does_not_contain_it(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        with pytest.raises(Exception, match="no such personal access token") as caught:
            made.gateway.personal_tokens.owner("my secret token", made.gateway.users)
        assert "my secret token" not in repr(caught.value)


async def test_tokens_are_the_same_after_a_restart(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        users, tokens = made.gateway.users, made.gateway.personal_tokens
        text = await tokens.create(users.root, "kept", 0)
        gone = await tokens.create(users.root, "gone", 0)
        short = await tokens.create(users.root, "short", SECOND)
        await tokens.delete(users.root, "gone")
    async with world(tmp_path) as made:
        users, tokens = made.gateway.users, made.gateway.personal_tokens
        assert tokens.owner(text, users) is users.root
        assert refused(lambda: tokens.owner(gone, users)) == Code.RESOURCE_NOT_FOUND
        made.clock.now += SECOND
        assert refused(lambda: tokens.owner(short, users)) == Code.PERSONAL_ACCESS_TOKEN_EXPIRED
        newer = await tokens.create(users.root, "newer", 0)
        assert tokens.owner(newer, users) is users.root
        assert len(tokens.of(users.root)) == 3


async def test_the_token_of_a_deleted_user_is_void_for_the_next_with_that_number(tmp_path: Path) -> None:
    """Even if a crash during the deletion has left the file of the token."""

    async with world(tmp_path) as made:
        users, tokens = made.gateway.users, made.gateway.personal_tokens
        alice = await users.create("alice", "secret", ACTIVE, None)
        text = await tokens.create(alice, "build", 0)
        await users.delete(alice.id)
        assert refused(lambda: tokens.owner(text, users)) == Code.RESOURCE_NOT_FOUND
        bob = await users.create("bob", "secret", ACTIVE, None)
        assert bob.id == alice.id
        assert refused(lambda: tokens.owner(text, users)) == Code.RESOURCE_NOT_FOUND
        assert tokens.of(bob) == []
    async with world(tmp_path) as made:
        assert refused(lambda: made.gateway.personal_tokens.owner(text, made.gateway.users)) == Code.RESOURCE_NOT_FOUND


async def test_an_unreadable_document_is_refused_and_its_number_is_not_reused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(tmp_path) as made:
        text = await made.gateway.personal_tokens.create(made.gateway.users.root, "build", 0)
    (tmp_path / "tokens" / "0.json").write_bytes(b"[]")
    async with world(tmp_path) as made:
        users, tokens = made.gateway.users, made.gateway.personal_tokens
        assert refused(lambda: tokens.owner(text, users)) == Code.RESOURCE_NOT_FOUND
        await tokens.create(users.root, "build", 0)
    assert (tmp_path / "tokens" / "0.json").read_bytes() == b"[]"
    assert "tokens/0.json" in caplog.text
