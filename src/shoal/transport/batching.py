"""Batch concurrent calls into one.

The coordinator and the relay use it for store transactions and for token verification. While a
blocking call runs in a thread, further requests are collected, and the next call serves them all:
one transaction serves any number of requests, and a single request does not wait. Calls that do not
block run in the event loop, those of one turn together, which is faster than one call between the
reads and writes of each connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from itertools import islice
from typing import Generic, TypeVar

Argument = TypeVar("Argument")
Result = TypeVar("Result")


class CallBatcher(Generic[Argument, Result]):
    """An asynchronous function of one value, made from a function of a list.

    Parameters
    ----------
    work
        Returns a result for each value, in order. If it raises, all callers of the batch get the
        error.
    executor
        Runs a function that blocks, one call at a time; None for the event loop.
    max_size
        Most values in one call.

    Examples
    --------
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> async def main() -> list[int]:
    ...     double = CallBatcher(
    ...         lambda numbers: [2 * n for n in numbers], ThreadPoolExecutor(1), 100
    ...     )
    ...     return await asyncio.gather(double(1), double(2), double(3))
    >>> asyncio.run(main())
    [2, 4, 6]
    """

    def __init__(
        self,
        work: Callable[[list[Argument]], list[Result]],
        executor: Executor | None,
        max_size: int,
    ) -> None:
        self._work, self._executor, self._max_size = work, executor, max_size
        self._waiting: dict[asyncio.Future[Result], Argument] = {}
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, argument: Argument) -> Result:
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting[future] = argument
        if self._task is None:
            self._task = asyncio.create_task(self._run_batches())
        return await future

    async def _run_batches(self) -> None:
        try:
            while self._waiting:
                some = dict(islice(self._waiting.items(), self._max_size))
                for future in some:
                    del self._waiting[future]
                # A caller that was cancelled does not need its result.
                some = {future: argument for future, argument in some.items() if not future.done()}
                if not some:
                    continue
                try:
                    results = await self._call_work(list(some.values()))
                except Exception as error:
                    for future in some:
                        _resolve_future(future, error=error)
                else:
                    for future, result in zip(some, results, strict=True):
                        _resolve_future(future, result)
        finally:
            self._task = None

    async def _call_work(self, some: list[Argument]) -> list[Result]:
        if self._executor is None:
            return self._work(some)
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._work, some)


def _resolve_future(
    future: asyncio.Future[Result], result: Result | None = None, error: Exception | None = None
) -> None:
    """Give a caller its result or error, unless the caller was cancelled."""
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)  # type: ignore[arg-type]
