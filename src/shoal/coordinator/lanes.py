"""One thread for token work, with separate queues; a pace for reading batches.

`CoordinatorService` has one `SharedThread` and one `Pace`. Registrations, single packets and
batches each wait in a separate queue, and the thread takes from them in turn: a flood of batches
delays a registration or a packet by one piece of a batch, not by all of them. The pace does the
same for the event loop, in which batches are read.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, NamedTuple, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class WorkQueue(Executor):
    """A queue of a `SharedThread`; work that is cancelled while it waits is not done."""

    def __init__(self, condition: threading.Condition) -> None:
        self._condition = condition
        self.waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self.is_closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        with self._condition:
            if self.is_closed:
                raise RuntimeError("The thread has been shut down.")
            self.waiting.append((future, lambda: fn(*args, **kwargs)))
            self._condition.notify()
        return future


class TokenLanes(NamedTuple):
    """The queues for token work."""

    registrations: Executor
    packets: Executor
    batches: Executor


class SharedThread:
    """A thread that works for several queues in turn.

    Examples
    --------
    >>> thread = SharedThread("an example")
    >>> thread.lanes.packets.submit(sum, (1, 2)).result()
    3
    >>> thread.shutdown()
    """

    def __init__(self, name: str) -> None:
        self._condition = threading.Condition()
        self._queues = [WorkQueue(self._condition) for _ in TokenLanes._fields]
        self.lanes = TokenLanes(*self._queues)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def shutdown(self) -> None:
        """Do all waiting work, then end the thread."""
        with self._condition:
            for queue in self._queues:
                queue.is_closed = True
            self._condition.notify()
        self._thread.join()

    def _run(self) -> None:
        turn = 0
        while (found := self._take(turn)) is not None:
            turn, future, work = found
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:
                    future.set_exception(error)
            del found, future, work

    def _take(self, turn: int) -> tuple[int, Future[Any], Callable[[], Any]] | None:
        """Wait for work; return it with the next turn, or None after the end."""
        n = len(self._queues)
        with self._condition:
            while True:
                for i in range(turn, turn + n):
                    if self._queues[i % n].waiting:
                        future, work = self._queues[i % n].waiting.popleft()
                        return (i + 1) % n, future, work
                if self._queues[0].is_closed:
                    return None
                self._condition.wait()


class Pace:
    """Let callers continue one after another, with a pause between two of them."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = asyncio.Lock()

    async def wait(self) -> None:
        async with self._lock:
            await asyncio.sleep(self._seconds)
