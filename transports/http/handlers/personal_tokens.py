"""Personal access tokens of the caller."""

from __future__ import annotations

import msgspec

from whippet.app.commands import requests
from whippet.transports.http.forms.field_types import Expiry, TokenName, parse_expiry
from whippet.transports.http.operation import Call


class PersonalAccessToken(msgspec.Struct, frozen=True):
    name: str
    expiry_at: int | None
    """In us since 1970; null if it never expires."""


class NewPersonalAccessToken(msgspec.Struct, frozen=True):
    name: TokenName
    expiry: Expiry
    """From now, in us or as a text such as `30 days`; 0, 2**64 - 1 and `never` mean never."""

    def __post_init__(self) -> None:
        parse_expiry(self.expiry, "expiry")


class RawToken(msgspec.Struct, frozen=True):
    """Returned once."""

    token: str


async def get_tokens(call: Call) -> list[PersonalAccessToken]:
    found = await call.execute(requests.GetPersonalAccessTokens())
    return [PersonalAccessToken(each.name, each.expires_at or None) for each in found]


async def create_token(call: Call) -> RawToken:
    body: NewPersonalAccessToken = call.body
    wanted = requests.CreatePersonalAccessToken(body.name, parse_expiry(body.expiry, "expiry") or 0)
    return RawToken((await call.execute(wanted)).token)


async def delete_token(call: Call) -> None:
    await call.execute(requests.DeletePersonalAccessToken(call.parameters["name"]))
