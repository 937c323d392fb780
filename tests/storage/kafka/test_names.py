"""Names in Kafka: those that fit are themselves, and all others are distinct and allowed."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from whippet.storage.kafka import names
from whippet.storage.offsets import Kind

ALLOWED = re.compile(r"[A-Za-z0-9._-]{1,249}")
NAMES = st.text(min_size=1, max_size=255) | st.from_regex(r"[A-Za-z0-9._-]{1,80}", fullmatch=True)


def test_a_name_that_fits_is_part_of_the_name_in_kafka() -> None:
    assert names.topic("whippet.", "shop", "orders") == "whippet.shop.orders"
    assert names.topic("", "my-shop_1", "orders.v1-new_2") == "my-shop_1.orders.v1-new_2"


def test_what_fits_of_any_other_name_can_be_recognised() -> None:
    assert names.topic("w.", "my shop", "заказы").startswith("w.my_shop--")
    assert re.fullmatch(r"w\.a_b--[0-9a-f]{16}\.x--y--[0-9a-f]{16}", names.topic("w.", "a.b", "x--y"))


@given(NAMES, NAMES, NAMES, NAMES)
def test_no_two_topics_have_the_same_name_in_kafka(stream: str, topic: str, other: str, another: str) -> None:
    prefix = "p" * 100
    found = names.topic(prefix, stream, topic)
    assert ALLOWED.fullmatch(found)
    assert (found == names.topic(prefix, other, another)) == ((stream, topic) == (other, another))
    assert found != names.catalogue(prefix)


def test_groups_of_topics_are_separated_by_what_no_topic_has() -> None:
    assert names.group("w.shop.orders", Kind.GROUP, "3") == "w.shop.orders/group/3"
    assert len({names.group("t", kind, "3") for kind in Kind}) == len(Kind)
