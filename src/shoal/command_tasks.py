"""The event loop of a command, and how signals end it: between two steps, and at once where it waits for a person."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from shoal.command_lines import TerminatedError, terminate

T = TypeVar("T")
Handler = Callable[[int, FrameType | None], object]


def run_tasks(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, where SIGTERM cancels the main task as an interruption does: raised inside a step of the loop it would break it."""
    heard: list[int] = []

    async def heeding() -> T:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def cancel(number: int, _: object) -> None:
            heard.append(number)
            if len(heard) > 1:
                raise TerminatedError
            task.cancel()
            loop.call_soon_threadsafe(lambda: None)  # the loop may be waiting for something else

        before = signal.signal(signal.SIGTERM, cancel) if signal.getsignal(signal.SIGTERM) is terminate else None
        try:
            return await main
        finally:
            if before is not None:
                signal.signal(signal.SIGTERM, before)

    try:
        return asyncio.run(heeding())
    except asyncio.CancelledError:
        if not heard:
            raise
        raise TerminatedError from None


@contextmanager
def raising_at_once() -> Iterator[None]:
    """Have signals end what waits for a person. Inside an event loop the first one is only taken note of, for when the loop goes on."""
    handlers: dict[int, Handler] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: terminate}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
