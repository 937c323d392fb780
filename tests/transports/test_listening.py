"""Listening sockets: the port that replaces 0, and the one line that reports why an address cannot be used."""

from __future__ import annotations

import pytest

from whippet.app.config.formats import Address
from whippet.transports.listening import ListenError, effective, listen

ANY_PORT = Address("127.0.0.1", 0)


async def test_port_0_is_replaced_by_the_real_port() -> None:
    with await listen(ANY_PORT, "http.address") as listener:
        assert effective(listener).host == "127.0.0.1"
        assert effective(listener).port > 0


async def test_a_name_uses_its_ipv4_address() -> None:
    with await listen(Address("localhost", 0), "http.address") as listener:
        assert effective(listener).host == "127.0.0.1"


async def test_an_address_in_use_is_refused_in_one_line() -> None:
    with await listen(ANY_PORT, "http.address") as listener:
        taken = effective(listener)
        with pytest.raises(ListenError) as refused:
            await listen(taken, "http.address")
    assert str(refused.value) == f"cannot listen on {taken} (http.address): Address already in use"


async def test_an_invalid_host_name_is_refused_in_one_line() -> None:
    with pytest.raises(ListenError, match=r"^cannot listen on a\.\.b:1 \(http\.address\): not a host name$"):
        await listen(Address("a..b", 1), "http.address")
