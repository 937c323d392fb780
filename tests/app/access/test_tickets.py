"""Tickets: each can be used once and for a short while, and nobody can fill the memory with them."""

from __future__ import annotations

from tests.app.access.support.world import SECOND
from tests.support.clocks import Clock
from whippet.app.access.tickets import PER_USER_MAX, Tickets


def test_a_ticket_can_be_redeemed_once() -> None:
    tickets = Tickets(30.0, Clock())
    text, _ = tickets.issue(b"Bearer a", "alice")
    assert tickets.redeem(text) == b"Bearer a"
    assert tickets.redeem(text) is None
    assert tickets.redeem("") is None


def test_a_ticket_expires() -> None:
    clock = Clock()
    tickets = Tickets(30.0, clock)
    text, ends_at = tickets.issue(b"Bearer a", "alice")
    late, _ = tickets.issue(b"Bearer a", "alice")
    assert ends_at == clock() + 30 * SECOND
    clock.now += 30 * SECOND
    assert tickets.redeem(text) == b"Bearer a"
    clock.now += 1
    assert tickets.redeem(late) is None


def test_the_tickets_of_a_user_are_limited_and_displace_no_others() -> None:
    clock = Clock()
    tickets = Tickets(30.0, clock)
    others, _ = tickets.issue(b"Bearer b", "bob")
    given = [tickets.issue(b"Bearer a", "alice")[0] for _ in range(PER_USER_MAX + 3)]
    assert len(tickets) == PER_USER_MAX + 1
    assert [tickets.redeem(text) for text in given[:3]] == [None] * 3
    assert tickets.redeem(given[3]) == b"Bearer a"
    assert tickets.redeem(others) == b"Bearer b"
    clock.now += 31 * SECOND
    tickets.issue(b"Bearer b", "bob")
    assert len(tickets) == 1, "those that have ended are forgotten"


def test_a_ticket_is_valid_until_its_last_moment() -> None:
    clock = Clock()
    tickets = Tickets(30.0, clock)
    first, _ = tickets.issue(b"Bearer a", "alice")
    clock.now += 30 * SECOND
    second, _ = tickets.issue(b"Bearer a", "alice")
    assert tickets.redeem(first) == b"Bearer a"
    clock.now += 30 * SECOND + 1
    tickets.issue(b"Bearer b", "bob")
    assert tickets.redeem(second) is None
    assert list(tickets._of_user) == ["bob"]


def test_a_user_has_at_most_64_tickets() -> None:
    tickets = Tickets(30.0, Clock())
    given = [tickets.issue(b"Bearer a", "alice")[0] for _ in range(65)]
    assert [text for text in given if tickets.redeem(text) is None] == given[:1]
    assert all(len(text) == 32 for text in given)
