"""The collector of cyclic garbage while many objects are created that stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from whippet.storage import collector


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    yield
    gc.enable()


def test_it_rests_meanwhile_and_is_as_before_afterwards() -> None:
    with collector.paused():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    with collector.paused():
        pass
    assert not gc.isenabled()


def test_it_works_again_after_a_failure() -> None:
    with pytest.raises(ZeroDivisionError), collector.paused():
        raise ZeroDivisionError
    assert gc.isenabled()


def test_only_very_many_objects_are_excluded_from_later_collections() -> None:
    before = gc.get_freeze_count()
    with collector.paused():
        few = [[number] for number in range(10)]
    assert gc.get_freeze_count() == before
    with collector.paused():
        many = [[number] for number in range(collector.MANY)]
    assert gc.get_freeze_count() >= before + len(few) + len(many)
