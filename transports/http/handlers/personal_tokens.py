"""Personal access tokens of the caller."""

from __future__ import annotations

import msgspec

from whippet.app.commands import requests
from whippet.transports.http.forms.field_types import U64, TokenName, check_u64
from whippet.transports.http.operation import Call


class PersonalAccessToken(msgspec.Struct, frozen=True):
    name: str
    expiry_at: int | None
    """In us since 1970; null if it never expires."""


class NewPersonalAccessToken(msgspec.Struct, frozen=True):
    name: TokenName
    expiry: U64
    """In us from now; 0 and 2**64 - 1 mean never."""

    def __post_init__(self) -> None:
        check_u64(self.expiry)


class RawToken(msgspec.Struct, frozen=True):
    """Returned once."""

    token: str


async def get_tokens(call: Call) -> list[PersonalAccessToken]:
    found = await call.execute(requests.GetPersonalAccessTokens())
    return [PersonalAccessToken(each.name, each.expires_at or None) for each in found]


async def create_token(call: Call) -> RawToken:
    body: NewPersonalAccessToken = call.body
    return RawToken((await call.execute(requests.CreatePersonalAccessToken(body.name, body.expiry))).token)


async def delete_token(call: Call) -> None:
    await call.execute(requests.DeletePersonalAccessToken(call.parameters["name"]))
