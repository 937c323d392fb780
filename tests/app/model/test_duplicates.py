"""A window of ids: bounded by number and by age; what is under way is waited for; what failed may be repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from app.model.duplicates import Window

NOTHING, A, B, C = (bytes([n]) * 16 for n in range(4))


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


def send(window: Window, ids: list[bytes], now: int = 0) -> list[int]:
    fresh, done = window.take(ids, now)
    window.decided([ids[i] for i in fresh], done, now)
    return fresh


def test_an_id_is_new_once_in_one_batch_and_over_several() -> None:
    async def main() -> None:
        window = Window(10, 0)
        assert send(window, [A, B, A, A]) == [0, 1]
        assert send(window, [B, C, A]) == [1]
        assert send(window, [A, B, C]) == []

    run(main())


def test_what_has_no_id_is_always_new() -> None:
    async def main() -> None:
        window = Window(10, 0)
        assert send(window, [NOTHING, A, NOTHING]) == [0, 1, 2]
        fresh, done = window.take([NOTHING, A, B], 0)
        assert fresh == [0, 2]
        assert window.undecided([NOTHING, A]) is None
        assert send(window, [NOTHING]) == [0]
        window.decided([NOTHING, B], done, 0)
        assert len(window) == 2

    run(main())


def test_the_oldest_ids_make_room() -> None:
    async def main() -> None:
        window = Window(2, 0)
        send(window, [A])
        send(window, [B, C])
        assert len(window) == 2
        assert send(window, [A, C]) == [0]

    run(main())


def test_an_id_is_forgotten_at_its_age_and_not_before() -> None:
    async def main() -> None:
        window = Window(0, 100)
        send(window, [A], now=50)
        assert send(window, [A], now=149) == []
        assert send(window, [A], now=150) == [0]

    run(main())


def test_what_is_under_way_is_undecided_until_it_is_in_the_log_or_has_failed() -> None:
    async def main() -> None:
        window = Window(10, 0)
        fresh, done = window.take([A], 0)
        assert fresh == [0]
        assert window.undecided([B]) is None
        assert window.undecided([B, A]) is done
        window.decided([A], done, None)
        assert done.done()
        assert window.undecided([A]) is None
        assert send(window, [A]) == [0]

    run(main())


def test_a_purge_forgets() -> None:
    async def main() -> None:
        window = Window(10, 0)
        send(window, [A])
        window.forget()
        assert send(window, [A]) == [0]

    run(main())
