"""Databases that collude with the miner: together they take all that they know out of a sum, and look at what is left.

Each of them keeps to the protocol, and tells the miner what it has put into every sum and whether it was selected to add noise.

==============  ==============================  ===========================================================================
noise           who colludes                    what is left of a sum
==============  ==============================  ===========================================================================
two-selected    both that were selected         the true counts of the others
two-selected    one of them                     a bound: no true count is beyond it, on one side
two-selected    neither                         counts with all of the noise
all-contribute  as many as expected, or fewer   counts with at least the noise that was promised
all-contribute  more                            counts with less noise, for which epsilon is larger: see `LeftNoise`
==============  ==============================  ===========================================================================
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.protocols.joint.computing import selected
from shoal.protocols.sdq.noise import ADDS, SUBTRACTS, noisy
from shoal.protocols.sdq.params import Ints, Params, Table
from shoal.protocols.sdq.peer import SDQPeer
from shoal.protocols.sdq.script import Round

Floats = npt.NDArray[np.float64]

_TAIL = 40.0
"""How many times 1 / rate the law of noise is followed outwards: what lies beyond has a chance of about exp(-40)."""


@dataclass(frozen=True, eq=False)
class Told:
    """What one database tells the miner about a round.

    Parameters
    ----------
    question
        Which round.
    values
        ``(n,)`` what it has put into the sums: its counts, and its noise.
    role
        Two selected: what it did; None where every database adds a share.
    """

    question: str
    values: Ints
    role: int | None = None


@dataclass(frozen=True, eq=False)
class Left:
    """What is left of the sums of a round without what the colluders have put in.

    Parameters
    ----------
    numbers
        ``(n,)`` the counts of all other databases, with the noise that nobody has told.
    is_least, is_most
        Whether no true count is below its number, or above it: whoever added noise has told it, or whoever took it away.
    """

    numbers: Ints
    is_least: bool
    is_most: bool

    @property
    def is_exact(self) -> bool:
        """Whether these are the true counts, and known to be."""
        return self.is_least and self.is_most


def take_away(noisy_sums: Ints, told: Iterable[Told]) -> Left:
    """The miner's view of a round, once the colluders have told it theirs.

    Notes
    -----
    Ref: SDQ §VI-B; errata S-02, S-03.

    Examples
    --------
    >>> left = take_away(np.array([107, 21]), [Told("sizes/1", np.array([12, 5]), ADDS), Told("sizes/1", np.array([-4, 3]), SUBTRACTS)])
    >>> left.numbers.tolist(), left.is_exact
    ([99, 13], True)
    """
    told = tuple(told)
    roles = {one.role for one in told}
    return Left(noisy_sums - sum((one.values for one in told), np.zeros_like(noisy_sums)), ADDS in roles, SUBTRACTS in roles)


def collude(params: Params, asked: Round, tables: Sequence[Table], colluders: Collection[int], entropy: Entropy) -> Left:
    """Play a round without messages, by the databases' own draws, and attack it.

    Parameters
    ----------
    params, asked
        The public figures of the study, and the round.
    tables
        The rows of every database that answers.
    colluders
        Who of them colludes.
    entropy
        What noise is drawn from and, where two databases are selected, which.
    """
    members = range(len(tables))
    roles = selected(dict.fromkeys(members, ()), entropy) if params.noise == "two-selected" else {}
    told = []
    for member, table in zip(members, tables, strict=True):
        parts = [noisy(params, part, table, asked.is_choice, roles.get(member), entropy) for part in asked.parts]
        told.append(Told(asked.question, np.concatenate(parts), roles.get(member)))
    return take_away(np.sum([one.values for one in told], axis=0), (told[member] for member in colluders))


class Colluder(SDQPeer):
    """A database that keeps to the protocol and tells the miner everything.

    Parameters
    ----------
    told
        Where it tells it.
    others
        As for `SDQPeer`.
    """

    def __init__(self, told: list[Told], *others: Any) -> None:
        super().__init__(*others)
        self.told = told

    def noisy(self, asked: Round, table: Table, role: int | None, entropy: Entropy) -> Ints:
        values = super().noisy(asked, table, role, entropy)
        self.told.append(Told(asked.question, values, role))
        return values


@dataclass(frozen=True)
class LeftNoise:
    """The law of what is left of shared noise where only some of the shares are unknown, and how well it still hides a record.

    Parameters
    ----------
    rate
        Of the noise that was promised: epsilon over sensitivity.
    shares
        Shares that nobody has told, over the number of shares that noise was made for; 1 is what was promised.

    Notes
    -----
    The difference of two Polya variables, by convolution; for 1 it is discrete Laplace. Fewer shares are more often 0, and the largest
    ratio of neighbouring chances, `epsilon`, exceeds the rate.

    Ref: errata S-08.

    Examples
    --------
    >>> [round(LeftNoise(1.0, shares).epsilon, 3) for shares in (2.0, 1.0, 0.5)]
    [1.0, 1.0, 1.675]
    """

    rate: float
    shares: float

    @cached_property
    def log_chances(self) -> Floats:
        """Of 0, 1, 2 and so on, as far as they are followed; of negative numbers the same."""
        n = int(np.ceil(_TAIL * max(1.0, self.shares) / self.rate)) + 1
        k = np.arange(2 * n)
        ratios = np.log((k[:-1] + self.shares) / k[1:]) - self.rate
        side = np.exp(np.concatenate([[0.0], np.cumsum(ratios)]) + self.shares * np.log(-np.expm1(-self.rate)))
        return np.asarray(np.log(np.correlate(side, side[: n + 1], "valid")))

    @property
    def epsilon(self) -> float:
        """The least epsilon that holds for a count that a record changes by one; far out the ratio tends to the rate, for any shares."""
        return max(self.rate, float(np.max(-np.diff(self.log_chances))))

    def evidence(self, left: Ints, without: int, with_record: int) -> Floats:
        """How much likelier what is left of a count is with the record there than without it: the logarithm of the ratio.

        By the lemma of Neyman and Pearson no test of one against the other is better than a threshold on it.
        """
        return self._at(left - with_record) - self._at(left - without)

    def _at(self, noise: Ints) -> Floats:
        return self.log_chances[np.minimum(np.abs(noise), self.log_chances.size - 1)]
