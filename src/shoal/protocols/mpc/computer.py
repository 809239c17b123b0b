"""The interface of a joint computation, and an ideal one for simulations.

Drivers call a `JointComputation` for the effects of their machines. `IdealComputation` sees all
inputs; `shoal.mpyc` runs the same programs on shares, so that each party learns its result only.

==========  =============================  =====================================================
program     inputs of a party              result of each party
==========  =============================  =====================================================
``argmax``  its shares of the sums, by     the position of the largest sum, the first of equals
            `shares.split`
``select``  none                           1 if it is selected to add, 2 to subtract, 0
                                           otherwise; two different parties are selected
==========  =============================  =====================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import LocalProtocolError
from shoal.protocols.effects import Broken, ComputationInput, Compute, Computed, Feed, Program
from shoal.protocols.mpc import shares

Inputs = Mapping[int, tuple[int, ...]]
"""Inputs by party."""
Results = Mapping[int, int]
"""Results by party."""


class JointComputation(Protocol):
    """The joint computations of the machines of one driver, which are their owners."""

    def begin(self, owner: str, request: Compute) -> None:
        """Begin an owner's part in a computation."""
        ...

    def feed(self, owner: str, given: Feed) -> None:
        """Pass on a payload that another party's part has emitted; no effect after the end."""
        ...

    def end(self, owner: str) -> None:
        """Drop all computations of an owner, which went down or has given up."""
        ...

    def collect(self) -> list[tuple[str, ComputationInput]]:
        """Return the pending inputs of the owners.

        Wait while a computation is running. An empty list means that each computation needs input
        or is over.
        """
        ...


def make_interruption(task: str) -> Broken:
    """Return the input of a machine that went down during a computation.

    Shares exist in memory only, so there is nothing to resume.
    """
    return Broken(
        task,
        LocalProtocolError(
            "JOINT-001", f"This machine went down during {task}.", why="Its shares are not stored."
        ),
    )


def compute_argmax(inputs: Inputs, _: Entropy) -> Results:
    """Return the position of the largest sum, the first of equals, for every party."""
    sums = shares.recombine(inputs, len(inputs))
    return dict.fromkeys(inputs, sums.index(max(sums)))


def select_pair(inputs: Inputs, entropy: Entropy) -> Results:
    """Select two different parties, uniformly among all ordered pairs.

    Notes
    -----
    Ref: SDQ Algorithm 1; errata S-01, S-06, S-07.
    """
    n = len(inputs)
    adding, other = divmod(entropy.below(n * (n - 1)), n - 1)
    subtracting = other + (other >= adding)
    return {me: 1 if me == adding else 2 if me == subtracting else 0 for me in inputs}


PROGRAMS: Mapping[Program, Callable[[Inputs, Entropy], Results]] = {
    "argmax": compute_argmax,
    "select": select_pair,
}


class IdealComputation:
    """A joint computation for simulations, which sees all inputs.

    It waits until all parties of a task have asked, and recombines their shares. Parties that ask
    for different programs never meet, as on a network. They exchange no frames. All randomness
    comes from ``entropy``; if it is seeded, each task has a separate stream, so that a simulation
    can be repeated.
    """

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy
        self._waiting: dict[tuple[str, str, int, int], dict[int, tuple[str, tuple[int, ...]]]] = {}
        self._ready: list[tuple[str, ComputationInput]] = []

    def begin(self, owner: str, request: Compute) -> None:
        """Record the request of a party; compute if it is the last."""
        key = (request.task, request.program, request.n_parties, len(request.inputs))
        parties = self._waiting.setdefault(key, {})
        parties[request.me] = (owner, request.inputs)
        if len(parties) == request.n_parties:
            del self._waiting[key]
            results = PROGRAMS[request.program](
                {me: inputs for me, (_, inputs) in parties.items()}, self._stream(request.task)
            )
            self._ready += [
                (name, Computed(request.task, (results[me],))) for me, (name, _) in parties.items()
            ]

    def feed(self, owner: str, given: Feed) -> None:
        """Do nothing: parties exchange no frames."""

    def end(self, owner: str) -> None:
        """Forget the requests and results of an owner."""
        for parties in self._waiting.values():
            for me in [me for me, (name, _) in parties.items() if name == owner]:
                del parties[me]
        self._ready = [(name, progress) for name, progress in self._ready if name != owner]

    def collect(self) -> list[tuple[str, ComputationInput]]:
        """Return new results; never waits."""
        ready, self._ready = self._ready, []
        return ready

    def _stream(self, task: str) -> Entropy:
        return (
            self._entropy.spawn("joint", task)
            if isinstance(self._entropy, SeededEntropy)
            else self._entropy
        )
