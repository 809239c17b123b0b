"""Blocking calls are made together, one batch at a time, in order."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from shoal.transport.batching import CallBatcher


class Gate:
    """Doubles numbers, once it is opened; notes what it was given together."""

    def __init__(self) -> None:
        self.given: list[list[int]] = []
        self.is_open = threading.Event()

    def __call__(self, numbers: list[int]) -> list[int]:
        self.given.append(numbers)
        assert self.is_open.wait(20)
        if 13 in numbers:
            raise ValueError("thirteen")
        return [2 * number for number in numbers]


def test_waiting_calls_share_one_call() -> None:
    async def main() -> list[int]:
        with ThreadPoolExecutor(1) as executor:
            double = CallBatcher(gate, executor, max_size=3)
            tasks = [asyncio.create_task(double(1))]
            while not gate.given:
                await asyncio.sleep(0)
            tasks += [asyncio.create_task(double(n)) for n in range(2, 7)]
            await asyncio.sleep(0)
            gate.is_open.set()
            return list(await asyncio.gather(*tasks))

    gate = Gate()
    assert asyncio.run(main()) == [2, 4, 6, 8, 10, 12]
    assert gate.given == [[1], [2, 3, 4], [5, 6]]


def test_error_reaches_all_callers_of_its_batch_only() -> None:
    async def main() -> list[int | BaseException]:
        with ThreadPoolExecutor(1) as executor:
            double = CallBatcher(gate, executor, max_size=2)
            gate.is_open.set()
            return list(
                await asyncio.gather(*(double(n) for n in (12, 13, 14)), return_exceptions=True)
            )

    gate = Gate()
    first, second, third = asyncio.run(main())
    assert isinstance(first, ValueError)
    assert first is second
    assert third == 28


def test_cancelled_caller_does_not_affect_others() -> None:
    async def main() -> int:
        with ThreadPoolExecutor(1) as executor:
            double = CallBatcher(gate, executor, max_size=9)
            gone, stays = asyncio.create_task(double(1)), asyncio.create_task(double(2))
            while not gate.given:
                await asyncio.sleep(0)
            gone.cancel()
            gate.is_open.set()
            with pytest.raises(asyncio.CancelledError):
                await gone
            return await stays

    gate = Gate()
    assert asyncio.run(main()) == 4


def test_calls_of_one_loop_turn_share_one_call_without_executor() -> None:
    given: list[list[int]] = []

    def double(numbers: list[int]) -> list[int]:
        assert threading.current_thread() is threading.main_thread()
        given.append(numbers)
        return [2 * number for number in numbers]

    async def main() -> list[int]:
        doubled = CallBatcher(double, None, max_size=3)
        first = await asyncio.gather(*(doubled(n) for n in (1, 2, 3, 4)))
        return [*first, await doubled(5)]

    assert asyncio.run(main()) == [2, 4, 6, 8, 10]
    assert given == [[1, 2, 3], [4], [5]]
