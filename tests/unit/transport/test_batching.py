"""Calls that block are made together: one at a time, in order, and whoever asked is told."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from shoal.transport.batching import Batched


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


def test_what_waits_is_asked_for_together() -> None:
    async def main() -> list[int]:
        with ThreadPoolExecutor(1) as executor:
            double = Batched(gate, executor, most=3)
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


def test_a_fault_is_told_to_all_who_were_asked_for_together_and_to_no_other() -> None:
    async def main() -> list[int | BaseException]:
        with ThreadPoolExecutor(1) as executor:
            double = Batched(gate, executor, most=2)
            gate.is_open.set()
            return list(await asyncio.gather(*(double(n) for n in (12, 13, 14)), return_exceptions=True))

    gate = Gate()
    first, second, third = asyncio.run(main())
    assert isinstance(first, ValueError)
    assert first is second
    assert third == 28


def test_who_has_gone_is_in_nobodys_way() -> None:
    async def main() -> int:
        with ThreadPoolExecutor(1) as executor:
            double = Batched(gate, executor, most=9)
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


def test_without_a_thread_what_is_asked_for_in_one_turn_is_asked_for_together() -> None:
    given: list[list[int]] = []

    def double(numbers: list[int]) -> list[int]:
        assert threading.current_thread() is threading.main_thread()
        given.append(numbers)
        return [2 * number for number in numbers]

    async def main() -> list[int]:
        doubled = Batched(double, None, most=3)
        first = await asyncio.gather(*(doubled(n) for n in (1, 2, 3, 4)))
        return [*first, await doubled(5)]

    assert asyncio.run(main()) == [2, 4, 6, 8, 10]
    assert given == [[1, 2, 3], [4], [5]]
