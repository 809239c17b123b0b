"""Databases that collude with the miner: they subtract what they know from a sum.

Tests, audits and `python -m benchmarks run sdq --only collusion` use it. Each colluder follows the
protocol, and discloses to the miner what it has put into every sum and whether it was selected to
add noise. The remainder of a sum depends on the kind of noise and on who colludes:

two-selected, both selected databases collude
    The true counts of the other databases.
two-selected, one of them colludes
    A bound on one side of each true count.
two-selected, neither colludes
    Counts with all of the noise.
all-contribute, up to the expected number of colluders
    Counts with at least the promised noise.
all-contribute, more colluders
    Counts with less noise, for which epsilon is larger: see `RemainingNoise`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.protocols.mpc.computer import select_pair
from shoal.protocols.sdq.noise import ADDS, SUBTRACTS, draw_noisy_counts
from shoal.protocols.sdq.params import CellTable, Ints, SDQParams
from shoal.protocols.sdq.peer import SDQPeer
from shoal.protocols.sdq.script import SDQRound

Floats = npt.NDArray[np.float64]

_TAIL = 40.0
"""Multiple of 1 / rate up to which the distribution is computed; the rest has chance exp(-40)."""


@dataclass(frozen=True, eq=False)
class DisclosedAnswer:
    """The contribution of one database to a round, as it discloses it to the miner.

    Parameters
    ----------
    question
        The round.
    values
        ``(n,)`` its counts plus its noise.
    role
        With two selected databases, its role; None if every database adds a share.
    """

    question: str
    values: Ints
    role: int | None = None


@dataclass(frozen=True, eq=False)
class RemainingSum:
    """The sums of a round without the contributions of the colluders.

    Parameters
    ----------
    numbers
        ``(n,)`` the counts of all other databases, with the undisclosed noise.
    is_lower_bound
        Whether no true count is below its number: the database that added noise disclosed it.
    is_upper_bound
        Whether no true count is above its number: the database that subtracted noise disclosed it.
    """

    numbers: Ints
    is_lower_bound: bool
    is_upper_bound: bool

    @property
    def is_exact(self) -> bool:
        """Whether these are known to be the true counts."""
        return self.is_lower_bound and self.is_upper_bound


def subtract_disclosed(noisy_sums: Ints, disclosed: Iterable[DisclosedAnswer]) -> RemainingSum:
    """Return the miner's view of a round after the colluders have disclosed their answers.

    Notes
    -----
    Ref: SDQ §VI-B; errata S-02, S-03.

    Examples
    --------
    >>> left = subtract_disclosed(
    ...     np.array([107, 21]),
    ...     [
    ...         DisclosedAnswer("sizes/1", np.array([12, 5]), ADDS),
    ...         DisclosedAnswer("sizes/1", np.array([-4, 3]), SUBTRACTS),
    ...     ],
    ... )
    >>> left.numbers.tolist(), left.is_exact
    ([99, 13], True)
    """
    disclosed = tuple(disclosed)
    roles = {share.role for share in disclosed}
    return RemainingSum(
        noisy_sums - sum((share.values for share in disclosed), np.zeros_like(noisy_sums)),
        ADDS in roles,
        SUBTRACTS in roles,
    )


def collude(
    params: SDQParams,
    asked: SDQRound,
    tables: Sequence[CellTable],
    colluders: Collection[int],
    entropy: Entropy,
) -> RemainingSum:
    """Simulate a round without messages, with the databases' own draws, and attack it.

    Parameters
    ----------
    tables
        The rows of each database that answers.
    colluders
        Positions of the colluding databases.
    """
    members = range(len(tables))
    roles = (
        select_pair(dict.fromkeys(members, ()), entropy) if params.noise == "two-selected" else {}
    )
    answers = []
    for member, table in zip(members, tables, strict=True):
        parts = [
            draw_noisy_counts(params, part, table, asked.is_choice, roles.get(member), entropy)
            for part in asked.parts
        ]
        answers.append(DisclosedAnswer(asked.question, np.concatenate(parts), roles.get(member)))
    return subtract_disclosed(
        np.sum([answer.values for answer in answers], axis=0),
        (answers[member] for member in colluders),
    )


class Colluder(SDQPeer):
    """A database that follows the protocol and discloses its answers.

    Parameters
    ----------
    disclosed
        The list to which it appends each answer.
    others
        Arguments of `SDQPeer`.
    """

    def __init__(self, disclosed: list[DisclosedAnswer], *others: Any) -> None:
        super().__init__(*others)
        self.disclosed = disclosed

    def draw_noisy_answer(
        self, asked: SDQRound, table: CellTable, role: int | None, entropy: Entropy
    ) -> Ints:
        values = super().draw_noisy_answer(asked, table, role, entropy)
        self.disclosed.append(DisclosedAnswer(asked.question, values, role))
        return values


@dataclass(frozen=True)
class RemainingNoise:
    """Distribution of distributed noise of which some shares are known.

    Parameters
    ----------
    rate
        Rate of the promised noise: epsilon divided by sensitivity.
    shares
        Undisclosed shares, divided by the number of shares that make the promised noise; 1 for the
        promised noise.

    Notes
    -----
    The difference of two Polya variables, by convolution. For 1 it is discrete Laplace. With fewer
    shares it is 0 more often, and the largest ratio of neighbouring probabilities, `epsilon`,
    exceeds the rate.

    Ref: errata S-08.

    Examples
    --------
    >>> [round(RemainingNoise(1.0, shares).epsilon, 3) for shares in (2.0, 1.0, 0.5)]
    [1.0, 1.0, 1.675]
    """

    rate: float
    shares: float

    @cached_property
    def log_chances(self) -> Floats:
        """Log probabilities of 0, 1, 2, ...; those of negative numbers are the same."""
        n = int(np.ceil(_TAIL * max(1.0, self.shares) / self.rate)) + 1
        k = np.arange(2 * n)
        ratios = np.log((k[:-1] + self.shares) / k[1:]) - self.rate
        side = np.exp(
            np.concatenate([[0.0], np.cumsum(ratios)]) + self.shares * np.log(-np.expm1(-self.rate))
        )
        return np.asarray(np.log(np.correlate(side, side[: n + 1], "valid")))

    @property
    def epsilon(self) -> float:
        """The smallest epsilon that holds for a count that one record changes by one.

        In the tail the ratio tends to the rate, for any shares.
        """
        return max(self.rate, float(np.max(-np.diff(self.log_chances))))

    def compute_evidence(self, left: Ints, without: int, with_record: int) -> Floats:
        """Return the log likelihood ratio of a remaining count with and without the record.

        By the Neyman-Pearson lemma no test is better than a threshold on it.
        """
        return self._look_up(left - with_record) - self._look_up(left - without)

    def _look_up(self, noise: Ints) -> Floats:
        return self.log_chances[np.minimum(np.abs(noise), self.log_chances.size - 1)]
