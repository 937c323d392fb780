"""The banner has one line for each thing that a person who starts the gateway wants to know."""

from __future__ import annotations

import pytest

from whippet.app import banner
from whippet.app.access.users import RootPassword
from whippet.app.config.formats import Address
from whippet.storage.options import Durability, StoreOptions


def test_every_address_has_a_line_that_can_be_opened() -> None:
    shown = banner.text({"http": Address("127.0.0.1", 3000)}, StoreOptions(path="/data"))
    assert "  http        http://127.0.0.1:3000\n" in shown


def test_the_dashboard_has_a_line_if_it_is_served() -> None:
    at, options = {"https": Address("127.0.0.1", 3000)}, StoreOptions(path="/data")
    assert "  dashboard   https://127.0.0.1:3000/ui\n" in banner.text(at, options, has_dashboard=True)
    assert "dashboard" not in banner.text(at, options)
    assert "dashboard" not in banner.text({"tcp": Address("127.0.0.1", 8090)}, options, has_dashboard=True)


@pytest.mark.parametrize("level", Durability)
def test_every_durability_level_states_what_it_promises(level: Durability) -> None:
    shown = banner.text({}, StoreOptions(path="/data", durability=level))
    assert f"  durability  {level.name.lower()}: {banner.PROMISES[level]}\n" in shown


@pytest.mark.parametrize(
    ("root_password", "sentence"),
    [
        (RootPassword.GENERATED, "user alice, password s3cret (generated now, and never shown again)"),
        (RootPassword.ENVIRONMENT, "user alice, with the password from IGGY_ROOT_PASSWORD"),
        (RootPassword.DEFAULT, "user alice, password iggy (the default, which everybody knows)"),
        (RootPassword.EARLIER_START, "user alice; if the password is lost: stop, then `whippet root-password --gen"),
    ],
)
def test_the_banner_states_how_to_sign_in(root_password: RootPassword, sentence: str) -> None:
    shown = banner.text({}, StoreOptions(path="/data"), "alice", root_password, "s3cret")
    assert f"  sign in     {sentence}" in shown
    assert ("s3cret" in shown) == (root_password is RootPassword.GENERATED)
