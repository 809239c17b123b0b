"""Joint computations in worker processes, for tests.

All parties run on one machine, with nothing but the computation between them.

Also ID3 on secret rows, in MPyC: an oracle for trees that shares no code with shoal's learners. It
follows MPyC's own ID3 demonstration: the rows in a node are a secret vector of zeros and ones, all
counts are secret sums of products, the quality of a split is computed on secret counts, and only
the tree is opened. The demonstration splits by Gini impurity; here it is information gain, with x
log x read from a public table by a secret unit vector. ``secure_id3`` runs this file in a separate
process, since MPyC has one runtime per process: one party alone, with the numbers as shares.
"""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shoal.mpyc.runner import MPyCWorkers
from shoal.protocols.base import Broken, Compute, Computed, Emitted, Feed

CHILD = str(Path(__file__).parent / "mpc_child.py")


class TestChildren(MPyCWorkers):
    """Workers with the programs of ``mpc_child``."""

    __test__ = False
    command = (sys.executable, CHILD)


class Trusting(MPyCWorkers):
    """Workers that unpickle."""

    command = (sys.executable, CHILD, "allow")


@contextmanager
def computing(
    program: str,
    shares: list[tuple[int, ...]],
    kind: type[MPyCWorkers] = TestChildren,
    **options: Any,
) -> Iterator[MPyCWorkers]:
    """Start all parties."""
    with kind(**options) as children:
        for me, inputs in enumerate(shares):
            children.begin(f"peer-{me}", Compute("joint/1", program, me, len(shares), inputs))
        yield children


def finish(
    children: MPyCWorkers,
    carry: Callable[[int, Emitted], bytes] = lambda sender, emitted: emitted.payload,
) -> dict[str, Any]:
    """Exchange frames between the parties until all are done; return their results."""
    ends: dict[str, Any] = {}
    while told := children.collect():
        for owner, progress in told:
            match progress:
                case Emitted(task, to):
                    sender = int(owner.removeprefix("peer-"))
                    children.feed(f"peer-{to}", Feed(task, sender, carry(sender, progress)))
                case Computed(_, (result,)):
                    ends[owner] = result
                case Broken(_, error):
                    ends[owner] = error
    return ends


Tree = int | tuple[int, tuple["Tree", ...]]
"""A class, or an attribute with a tree for each of its values."""

FINENESS = 1 << 24
"""x log x is rounded to so many parts of a bit: finer than any two different gains of a small table
are apart.
"""

PLAY_TENNIS = {
    "Outlook": ("Sunny", "Overcast", "Rain"),
    "Temperature": ("Hot", "Mild", "Cool"),
    "Humidity": ("High", "Normal"),
    "Wind": ("Weak", "Strong"),
    "Play": ("No", "Yes"),
}
"""The paper's Fig. 1: attributes and their values; the last is the class."""

_DAYS = """
Sunny Hot High Weak No
Sunny Hot High Strong No
Overcast Hot High Weak Yes
Rain Mild High Weak Yes
Rain Cool Normal Weak Yes
Rain Cool Normal Strong No
Overcast Cool Normal Strong Yes
Sunny Mild High Weak No
Sunny Cool Normal Weak Yes
Rain Mild Normal Weak Yes
Sunny Mild Normal Strong Yes
Overcast Mild High Strong Yes
Overcast Hot Normal Weak Yes
Rain Mild High Strong No
"""


def play_tennis() -> tuple[list[list[int]], list[int]]:
    """Return the 14 rows of Fig. 1 as positions of values, and their classes."""
    days = [day.split() for day in _DAYS.strip().splitlines()]
    coded = [
        [values.index(value) for values, value in zip(PLAY_TENNIS.values(), day, strict=True)]
        for day in days
    ]
    return [row[:-1] for row in coded], [row[-1] for row in coded]


def secure_id3(
    rows: Sequence[Sequence[int]],
    labels: Sequence[int],
    arities: Sequence[int],
    n_classes: int,
    depth: int,
) -> Tree:
    """Return the tree of ID3: split until a node is pure, empty, without attributes or too deep.

    The first of equal attributes is taken.
    """
    asked = {
        "rows": [list(row) for row in rows],
        "labels": list(labels),
        "arities": list(arities),
        "n_classes": n_classes,
        "depth": depth,
    }
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=True,
    )
    return _frozen(json.loads(done.stdout.splitlines()[-1]))


def _frozen(tree: Any) -> Tree:
    return tree if isinstance(tree, int) else (tree[0], tuple(map(_frozen, tree[1])))


async def _grown(
    mpc: Any,
    rows: list[list[int]],
    labels: list[int],
    arities: list[int],
    n_classes: int,
    depth: int,
) -> Any:
    number, n = mpc.SecInt(48), len(rows)
    has = [
        [[number(int(row[a] == value)) for row in rows] for value in range(arity)]
        for a, arity in enumerate(arities)
    ]
    is_class = [[number(int(label == c)) for label in labels] for c in range(n_classes)]
    table = [round(FINENESS * x * math.log2(x)) if x else 0 for x in range(n + 1)]

    def x_log_x(count: Any) -> Any:
        return mpc.in_prod(mpc.unit_vector(count, n + 1), [number(entry) for entry in table])

    def counts(inside: list[Any]) -> list[Any]:
        return [mpc.in_prod(inside, members) for members in is_class]

    def gain(parts: list[list[Any]]) -> Any:
        """Information gain but for what all attributes of a node have in common."""
        split = [counts(part) for part in parts]
        return mpc.sum([x_log_x(count) for part in split for count in part]) - mpc.sum(
            [x_log_x(mpc.sum(part)) for part in split]
        )

    async def grow(inside: list[Any], left: list[int], majority: int) -> Any:
        here = counts(inside)
        size = mpc.sum(here)
        if await mpc.output(size == 0):
            return majority
        first, most = mpc.argmax(here)
        majority = int(await mpc.output(first))
        if len(left) + depth == len(arities) or not left or await mpc.output(most == size):
            return majority
        parts = [[mpc.schur_prod(inside, members) for members in has[a]] for a in left]
        best, _ = mpc.argmax([gain(part) for part in parts])
        place = int(await mpc.output(best))
        rest = left[:place] + left[place + 1 :]
        return [left[place], [await grow(part, rest, majority) for part in parts[place]]]

    return await grow([number(1)] * n, list(range(len(arities))), 0)


def _main() -> None:
    from mpyc.runtime import mpc

    asked = json.load(sys.stdin)
    print(json.dumps(mpc.run(_grown(mpc, **asked))))


if __name__ == "__main__":
    asyncio.set_event_loop(asyncio.new_event_loop())
    _main()
