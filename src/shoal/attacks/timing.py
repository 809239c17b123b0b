"""Link anonymous packets to registered keys by the times of serving them.

A hostile coordinator answers one registered key at a time: it holds back all other responses, and
then takes the next packet for one of that key. `tests/e2e/test_active_coordinator.py` runs such a
coordinator against real participants and gives `guess_keys` its event log.

If times show nothing, a guess that gives every key of a study to one packet is right once per study
on average, with variance 1, however many members the study has: `bound_chance_hits`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ServedKey:
    """A registered key, and when the coordinator let it read the question."""

    key: str
    time: float


def guess_keys(served: Sequence[ServedKey], packets: Sequence[float]) -> list[str]:
    """Return the key that is guessed for each packet of a study, no key twice.

    In the order of their arrival, each packet is given to the key that was served last before it
    and is still free.

    Parameters
    ----------
    served
        All keys of the study.
    packets
        Times of arrival, at most one for each key.

    Examples
    --------
    >>> served = [ServedKey("a", 0.0), ServedKey("b", 6.0), ServedKey("c", 12.0)]
    >>> guess_keys(served, [14.0, 3.0, 11.0]), guess_keys(served, [20.0, 30.0, 25.0])
    (['c', 'a', 'b'], ['c', 'a', 'b'])
    """
    free = sorted(served, key=lambda one: one.time)
    guesses: dict[int, str] = {}
    for i in sorted(range(len(packets)), key=lambda i: packets[i]):
        before = [one for one in free if one.time <= packets[i]]
        guess = before[-1] if before else free[0]
        free.remove(guess)
        guesses[i] = guess.key
    return [guesses[i] for i in range(len(packets))]


def bound_chance_hits(n_studies: int) -> int:
    """Return the correct guesses that chance explains: the mean and three standard errors.

    Examples
    --------
    >>> bound_chance_hits(10)
    19
    """
    return math.floor(n_studies + 3 * math.sqrt(n_studies))
