"""The programs on shares are correct for all orders, ties, signs and sizes."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product

import pytest

from shoal.entropy import SeededEntropy
from shoal.mpyc.runner import MPyCWorkers, make_environment
from shoal.mpyc.worker import PROGRAMS
from shoal.protocols.mpc import computer as ideal
from shoal.protocols.mpc import shares
from tests.support.mpc import computing, finish

LARGEST = 1 << shares.SUM_BITS
ENTROPY = SeededEntropy("programs")

ALONE = """
import asyncio, json, sys
from shoal.mpyc.worker import make_runtime
from shoal.mpyc.worker import WorkerTask
from shoal.mpyc.worker import argmax
from shoal.protocols.mpc.shares import PRIME
columns = json.load(sys.stdin)
loop = asyncio.new_event_loop()
asyncio.set_event_loop(loop)
runtime = make_runtime(WorkerTask("argmax", 0, 1, ()), {})
async def run():
    return [await argmax(runtime, tuple(value % PRIME for value in values)) for values in columns]
print(json.dumps(loop.run_until_complete(run())))
"""


def test_argmax_of_one_party_returns_first_largest_for_all_orders() -> None:
    """One party alone, with the numbers as its shares: the same code, without messages."""
    columns = [list(values) for n in (1, 2, 3) for values in product((-2, 0, 3), repeat=n)]
    columns += [list(values) for values in product((-LARGEST, LARGEST), repeat=3)]
    columns += [
        [LARGEST - 1, LARGEST],
        [-LARGEST, 1 - LARGEST],
        [LARGEST, LARGEST - 1, LARGEST],
        [0, -1],
        [-1, 0],
    ]
    columns += [[ENTROPY.below(2 * LARGEST + 1) - LARGEST for _ in range(n)] for n in range(4, 24)]
    columns += [[ENTROPY.below(3) for _ in range(n)] for n in range(4, 24)]
    command = [sys.executable, "-c", ALONE]
    done = subprocess.run(
        command,
        input=json.dumps(columns),
        env=make_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [
        values.index(max(values)) for values in columns
    ]


@pytest.mark.parametrize(
    ("n_parties", "values"), [(3, [-LARGEST, 5, LARGEST, LARGEST]), (4, [-7, -7, -8])]
)
def test_argmax_of_several_parties_returns_first_largest(n_parties: int, values: list[int]) -> None:
    with computing("argmax", shares.split(values, n_parties, ENTROPY), MPyCWorkers) as children:
        assert finish(children) == {
            f"peer-{i}": values.index(max(values)) for i in range(n_parties)
        }


@pytest.mark.parametrize("n_parties", [3, 4])
def test_select_pair_flags_two_different_parties(n_parties: int) -> None:
    with computing("select", [()] * n_parties, MPyCWorkers) as children:
        assert sorted(finish(children).values()) == [0] * (n_parties - 2) + [1, 2]


def test_worker_has_every_ideal_program() -> None:
    assert set(PROGRAMS) == set(ideal.PROGRAMS)
