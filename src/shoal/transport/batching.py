"""Calls that block, made together in a thread: what is asked for while one call is under way waits, and is asked for in one call then.

So one transaction serves all who wait for it, however many they are, and whoever comes alone waits for nobody. Calls that do not block are
made in the event loop: those of one turn together, which is faster than each between the reading and writing of others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from itertools import islice
from typing import Generic, TypeVar

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class Batched(Generic[Asked, Answer]):
    """A function of many, as an asynchronous one of one.

    Parameters
    ----------
    work
        Answers each of what it is given, in order. What it raises, all of them are told.
    executor
        Where it runs, if it blocks; one call at a time. None for the event loop.
    most
        How many it is given at once at most.

    Examples
    --------
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> async def main() -> list[int]:
    ...     double = Batched(lambda numbers: [2 * n for n in numbers], ThreadPoolExecutor(1), most=100)
    ...     return await asyncio.gather(double(1), double(2), double(3))
    >>> asyncio.run(main())
    [2, 4, 6]
    """

    def __init__(self, work: Callable[[list[Asked]], list[Answer]], executor: Executor | None, most: int) -> None:
        self._work, self._executor, self._most = work, executor, most
        self._waiting: dict[asyncio.Future[Answer], Asked] = {}
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, asked: Asked) -> Answer:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[future] = asked
        if self._task is None:
            self._task = asyncio.create_task(self._answer_all())
        return await future

    async def _answer_all(self) -> None:
        try:
            while self._waiting:
                some = dict(islice(self._waiting.items(), self._most))
                for future in some:
                    del self._waiting[future]
                try:
                    answers = await self._ask(list(some.values()))
                except Exception as error:
                    for future in some:
                        _settle(future, error=error)
                else:
                    for future, answer in zip(some, answers, strict=True):
                        _settle(future, answer)
        finally:
            self._task = None

    async def _ask(self, some: list[Asked]) -> list[Answer]:
        if self._executor is None:
            return self._work(some)
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._work, some)


def _settle(future: asyncio.Future[Answer], answer: Answer | None = None, error: Exception | None = None) -> None:
    """Whoever asked may have gone meanwhile."""
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(answer)  # type: ignore[arg-type]
