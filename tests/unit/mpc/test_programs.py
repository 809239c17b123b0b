"""The programs on shares give what they say, for all orders, ties, signs and sizes."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product

import pytest

from joint_runs import computing, finish
from shoal.entropy import SeededEntropy
from shoal.mpc.children import Children, environment
from shoal.mpc.programs import PROGRAMS
from shoal.protocols.joint import computing as ideal
from shoal.protocols.joint import dealing

LARGEST = 1 << dealing.SUM_BITS
ENTROPY = SeededEntropy("programs")

ALONE = """
import asyncio, json, sys
from shoal.mpc.child import runtime_of
from shoal.mpc.frames import Task
from shoal.mpc.programs import argmax
from shoal.protocols.joint.dealing import PRIME
columns = json.load(sys.stdin)
loop = asyncio.new_event_loop()
asyncio.set_event_loop(loop)
runtime = runtime_of(Task("argmax", 0, 1, ()), {})
async def run():
    return [await argmax(runtime, tuple(value % PRIME for value in values)) for values in columns]
print(json.dumps(loop.run_until_complete(run())))
"""


def test_argmax_is_the_first_of_the_largest_for_every_order_and_tie() -> None:
    """One party alone, whose shares are the numbers themselves: the same code, and no time for messages."""
    columns = [list(values) for n in (1, 2, 3) for values in product((-2, 0, 3), repeat=n)]
    columns += [list(values) for values in product((-LARGEST, LARGEST), repeat=3)]
    columns += [[LARGEST - 1, LARGEST], [-LARGEST, 1 - LARGEST], [LARGEST, LARGEST - 1, LARGEST], [0, -1], [-1, 0]]
    columns += [[ENTROPY.below(2 * LARGEST + 1) - LARGEST for _ in range(n)] for n in range(4, 24)]
    columns += [[ENTROPY.below(3) for _ in range(n)] for n in range(4, 24)]
    command = [sys.executable, "-c", ALONE]
    done = subprocess.run(command, input=json.dumps(columns), env=environment(), capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == [values.index(max(values)) for values in columns]


@pytest.mark.parametrize(("n_parties", "values"), [(3, [-LARGEST, 5, LARGEST, LARGEST]), (4, [-7, -7, -8])])
def test_argmax_among_several(n_parties: int, values: list[int]) -> None:
    with computing("argmax", dealing.split(values, n_parties, ENTROPY), Children) as children:
        assert finish(children) == {f"peer-{i}": values.index(max(values)) for i in range(n_parties)}


@pytest.mark.parametrize("n_parties", [3, 4])
def test_select_gives_two_different_parties_their_flags_and_the_others_none(n_parties: int) -> None:
    with computing("select", [()] * n_parties, Children) as children:
        assert sorted(finish(children).values()) == [0] * (n_parties - 2) + [1, 2]


def test_every_program_of_a_simulation_exists_on_shares() -> None:
    assert set(PROGRAMS) == set(ideal.PROGRAMS)
