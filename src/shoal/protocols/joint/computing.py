"""Who runs a joint computation: what a driver may expect of a computer, and one for simulations that sees everything.

==========  ==========================================  =====================================================================
program     inputs of a party                           what each party learns
==========  ==========================================  =====================================================================
``argmax``  its shares of the sums, by `dealing.split`  the position of the largest sum, the first of several
``select``  none                                        1 if it is selected to add, 2 to subtract, 0 otherwise; two differ
==========  ==========================================  =====================================================================

``shoal.mpc`` runs the same programs on shares, so that nobody sees more than that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import LocalProtocolError
from shoal.protocols.effects import Broken, Compute, Computed, Feed, Program, Progress
from shoal.protocols.joint import dealing

Inputs = Mapping[int, tuple[int, ...]]
"""What each party puts in."""
Results = Mapping[int, int]
"""What each party learns."""


class Computer(Protocol):
    """Runs joint computations for the machines of one driver, which are its owners."""

    def begin(self, owner: str, asked: Compute) -> None:
        """Take up an owner's part in a computation."""
        ...

    def feed(self, owner: str, given: Feed) -> None:
        """Give it what another party's part has emitted. A computation that is over takes no notice."""
        ...

    def end(self, owner: str) -> None:
        """Drop all that an owner has under way: it went down, or has given up."""
        ...

    def collect(self) -> list[tuple[str, Progress]]:
        """What owners are to hear. Waits while a computation is at work; nothing means that each needs to be fed, or is over."""
        ...


def interrupted(task: str) -> Broken:
    """What a machine hears that went down during a computation: shares lived in memory alone, so that there is nothing to resume."""
    return Broken(task, LocalProtocolError("JOINT-001", f"This machine went down during {task}.", why="Nothing of it was kept."))


def largest(inputs: Inputs, _: Entropy) -> Results:
    """The position of the largest sum, the first of several, for everyone."""
    sums = dealing.recombine(inputs, len(inputs))
    return dict.fromkeys(inputs, sums.index(max(sums)))


def selected(inputs: Inputs, entropy: Entropy) -> Results:
    """Two different parties, uniform among all ordered pairs.

    Notes
    -----
    Ref: SDQ Algorithm 1; errata S-01, S-06, S-07.
    """
    n = len(inputs)
    adding, other = divmod(entropy.below(n * (n - 1)), n - 1)
    subtracting = other + (other >= adding)
    return {me: 1 if me == adding else 2 if me == subtracting else 0 for me in inputs}


PROGRAMS: Mapping[Program, Callable[[Inputs, Entropy], Results]] = {"argmax": largest, "select": selected}


class IdealComputer:
    """A computer for simulations: it waits until all parties of a task have asked, puts their shares together and sees everything.

    Parties that ask for different things never meet, as on a network. They send each other nothing. All is drawn from ``entropy``, for
    each task from a stream of its own where it is seeded, so that a simulation can be repeated.
    """

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy
        self._waiting: dict[tuple[str, str, int, int], dict[int, tuple[str, tuple[int, ...]]]] = {}
        self._ready: list[tuple[str, Progress]] = []

    def begin(self, owner: str, asked: Compute) -> None:
        """Note that a party has asked; compute when it is the last."""
        key = (asked.task, asked.program, asked.n_parties, len(asked.inputs))
        seats = self._waiting.setdefault(key, {})
        seats[asked.me] = (owner, asked.inputs)
        if len(seats) == asked.n_parties:
            del self._waiting[key]
            results = PROGRAMS[asked.program]({me: inputs for me, (_, inputs) in seats.items()}, self._stream(asked.task))
            self._ready += [(name, Computed(asked.task, (results[me],))) for me, (name, _) in seats.items()]

    def feed(self, owner: str, given: Feed) -> None:
        """Take no notice: what nobody has emitted is of no use."""

    def end(self, owner: str) -> None:
        """Forget what an owner has asked, and what it was to hear."""
        for seats in self._waiting.values():
            for me in [me for me, (name, _) in seats.items() if name == owner]:
                del seats[me]
        self._ready = [(name, progress) for name, progress in self._ready if name != owner]

    def collect(self) -> list[tuple[str, Progress]]:
        """What is computed and was not told yet; never waits."""
        ready, self._ready = self._ready, []
        return ready

    def _stream(self, task: str) -> Entropy:
        return self._entropy.spawn("joint", task) if isinstance(self._entropy, SeededEntropy) else self._entropy
