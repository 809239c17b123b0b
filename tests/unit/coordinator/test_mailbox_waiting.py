"""Waiting requests are woken by notifications and by changes in the store; none is missed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from shoal.coordinator.mailbox import ChangeNotifier
from shoal.errors import StoreError

LONG = 30.0


def test_notification_after_version_is_not_missed() -> None:
    async def main() -> None:
        notifier = ChangeNotifier(lambda _: None)
        mark = notifier.version("a")
        notifier.notify("a")
        assert await notifier.wait("a", mark, 0.2)

    asyncio.run(main())


def test_notify_wakes_only_requests_of_its_study() -> None:
    async def main() -> None:
        notifier = ChangeNotifier(lambda _: None)
        waits = [
            asyncio.create_task(notifier.wait(study, notifier.version(study), LONG))
            for study in ("a", "a", "b")
        ]
        await asyncio.sleep(0)
        assert notifier.has_waiters
        notifier.notify("a")
        assert await waits[0]
        assert await waits[1]
        assert not waits[2].done()
        notifier.close()
        assert not await waits[2]
        assert not notifier.has_waiters

    asyncio.run(main())


def test_wait_returns_false_after_timeout() -> None:
    async def main() -> None:
        notifier = ChangeNotifier(lambda _: None)
        assert not await notifier.wait("a", notifier.version("a"), 0.001)
        notifier.close()
        assert not await notifier.wait("a", notifier.version("a"), LONG)

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


def test_wait_detects_change_of_other_process() -> None:
    async def main() -> None:
        notifier = ChangeNotifier(changing(1, 1, StoreError("STORE-001", "It is away."), 2))
        assert await notifier.wait(
            "a", notifier.version("a"), LONG
        )  # the first look: nothing was seen before it
        assert await notifier.wait("a", notifier.version("a"), LONG)

    asyncio.run(main())


def test_wait_is_not_woken_without_change() -> None:
    async def main() -> None:
        looks: list[str] = []
        notifier = ChangeNotifier(lambda study: looks.append(study))
        assert not await notifier.wait("a", notifier.version("a"), 0.3)
        assert not await notifier.wait("a", notifier.version("a"), 0.3)
        assert set(looks) == {"a"}

    asyncio.run(main())
