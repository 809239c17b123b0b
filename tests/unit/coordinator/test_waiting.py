"""Whoever waits is woken by a ring here, and by what a look at the store shows; none is missed between a look and a wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from shoal.coordinator.waiting import Bells
from shoal.errors import StoreError

LONG = 30.0


def test_a_ring_since_the_mark_is_not_missed() -> None:
    async def main() -> None:
        bells = Bells(lambda _: None)
        mark = bells.mark("a")
        bells.ring("a")
        assert await bells.wait("a", mark, 0.2)

    asyncio.run(main())


def test_a_ring_wakes_those_of_its_study_alone() -> None:
    async def main() -> None:
        bells = Bells(lambda _: None)
        waits = [asyncio.create_task(bells.wait(study, bells.mark(study), LONG)) for study in ("a", "a", "b")]
        await asyncio.sleep(0)
        assert bells.is_awaited
        bells.ring("a")
        assert await waits[0]
        assert await waits[1]
        assert not waits[2].done()
        bells.hang_up()
        assert not await waits[2]
        assert not bells.is_awaited

    asyncio.run(main())


def test_who_waits_in_vain_is_told_so() -> None:
    async def main() -> None:
        bells = Bells(lambda _: None)
        assert not await bells.wait("a", bells.mark("a"), 0.001)
        bells.hang_up()
        assert not await bells.wait("a", bells.mark("a"), LONG)

    asyncio.run(main())


def changing(*seen: object) -> Callable[[str], object]:
    """Shows one thing after the other, and the last for ever; an error is raised."""
    left = list(seen)

    def look(study: str) -> object:
        shown = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(shown, Exception):
            raise shown
        return shown

    return look


def test_what_another_process_wrote_is_seen_by_looking() -> None:
    async def main() -> None:
        bells = Bells(changing(1, 1, StoreError("STORE-001", "It is away."), 2))
        assert await bells.wait("a", bells.mark("a"), LONG)  # the first look: nothing was seen before it
        assert await bells.wait("a", bells.mark("a"), LONG)

    asyncio.run(main())


def test_as_long_as_nothing_changes_nobody_is_woken() -> None:
    async def main() -> None:
        looks: list[str] = []
        bells = Bells(lambda study: looks.append(study))
        assert not await bells.wait("a", bells.mark("a"), 0.3)
        assert not await bells.wait("a", bells.mark("a"), 0.3)
        assert set(looks) == {"a"}

    asyncio.run(main())
