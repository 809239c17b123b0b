"""Joint computations in child processes, for tests: all parties at once, with nothing but the computer between them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shoal.mpc.children import Children
from shoal.protocols.base import Broken, Compute, Computed, Emitted, Feed

CHILD = str(Path(__file__).parent / "mpc_child.py")


class TestChildren(Children):
    """With the programs of ``mpc_child``."""

    __test__ = False
    command = (sys.executable, CHILD)


class Trusting(Children):
    """Children that unpickle."""

    command = (sys.executable, CHILD, "allow")


@contextmanager
def computing(program: str, shares: list[tuple[int, ...]], kind: type[Children] = TestChildren, **options: Any) -> Iterator[Children]:
    """All parties have begun."""
    with kind(**options) as children:
        for me, inputs in enumerate(shares):
            children.begin(f"peer-{me}", Compute("joint/1", program, me, len(shares), inputs))
        yield children


def finish(children: Children, carry: Callable[[int, Emitted], bytes] = lambda sender, emitted: emitted.payload) -> dict[str, Any]:
    """Carry frames between the parties until nothing moves; what each came to."""
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
