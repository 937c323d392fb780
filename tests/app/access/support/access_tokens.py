"""A world with access tokens."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from tests.app.access.support.world import World, world
from whippet.app.access.access_tokens import AccessTokens
from whippet.app.access.users import User
from whippet.app.config.formats import Secret
from whippet.app.config.listeners import HttpJwt

SECRET = "a secret that the test knows"


CONFIG = HttpJwt(encoding_secret=Secret(SECRET))


class TokenWorld(World):
    """A world and its access tokens."""

    tokens: AccessTokens
    path: Path

    def find(self, name: str) -> User:
        user = self.gateway.users.find(name)
        assert user is not None
        return user

    def give(self, name: str = "root") -> str:
        return self.tokens.issue(self.find(name)).text

    async def user_of(self, text: str) -> str | None:
        caller = await self.tokens.authenticate(text)
        return None if caller is None else caller.user.username

    async def reopened(self, config: HttpJwt = CONFIG) -> AccessTokens:
        return await AccessTokens.open(config, str(self.path), self.gateway.users, self.clock)


@contextlib.asynccontextmanager
async def token_world(path: Path, config: HttpJwt = CONFIG) -> AsyncIterator[TokenWorld]:
    async with world(path) as made:
        made.__class__ = TokenWorld
        assert isinstance(made, TokenWorld)
        made.path = path
        made.tokens = await made.reopened(config)
        yield made
