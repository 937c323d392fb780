"""The commands for personal access tokens: users manage their own, without any permission."""

from __future__ import annotations

from pathlib import Path

from tests.app.access.support.world import SECOND, refusal, world
from tests.support.clocks import NOON
from whippet.app.commands import requests, responses
from whippet.app.errors import Code


async def test_users_without_permissions_manage_their_own_tokens_only(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.user("alice")
        alice, root = await made.logged_in("alice"), await made.root()
        assert await alice.execute(requests.GetPersonalAccessTokens()) == ()
        made_one = await alice.execute(requests.CreatePersonalAccessToken("two", 5 * SECOND))
        assert len(made_one.token) == 68
        await alice.execute(requests.CreatePersonalAccessToken("one", 0))
        await root.execute(requests.CreatePersonalAccessToken("three", 0))
        assert await alice.execute(requests.GetPersonalAccessTokens()) == (
            responses.TokenInfo("one", 0),
            responses.TokenInfo("two", NOON + 5 * SECOND),
        )
        assert await refusal(alice.execute(requests.DeletePersonalAccessToken("three"))) == Code.RESOURCE_NOT_FOUND
        await alice.execute(requests.DeletePersonalAccessToken("one"))
        assert await refusal(alice.execute(requests.DeletePersonalAccessToken("one"))) == Code.RESOURCE_NOT_FOUND
        assert await alice.execute(requests.GetPersonalAccessTokens()) == (
            responses.TokenInfo("two", NOON + 5 * SECOND),
        )


async def test_a_deleted_token_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        root = await made.root()
        token = (await root.execute(requests.CreatePersonalAccessToken("build", 0))).token
        assert (await made.person().execute(requests.LoginWithPersonalAccessToken(token))).user_id == 0
        await root.execute(requests.DeletePersonalAccessToken("build"))
        program = made.person()
        assert await refusal(program.execute(requests.LoginWithPersonalAccessToken(token))) == Code.RESOURCE_NOT_FOUND
