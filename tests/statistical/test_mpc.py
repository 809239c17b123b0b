"""The joint selection of two different parties, in a simulation and on shares.

Each ordered pair of different parties is equally likely.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import permutations

import numpy as np

from shoal.entropy import SeededEntropy
from shoal.protocols.mpc.computer import select_pair
from tests.statistical.harness import catches, fits, statistical
from tests.support.mpc import computing, finish
from tests.support.mpc_child import N_SELECTIONS

Pair = tuple[int, int]


def is_fair(pairs: Iterable[Pair], n_parties: int, alpha: float) -> bool:
    """Return whether ordered pairs of different parties are equally likely, and no others occur."""
    order = {pair: place for place, pair in enumerate(permutations(range(n_parties), 2))}
    counts = np.bincount([order.get(pair, len(order)) for pair in pairs], minlength=len(order) + 1)
    return counts[-1] == 0 and fits(counts[:-1], np.full(len(order), 1 / len(order)), alpha)


def find_pair(flags: dict[int, int]) -> Pair:
    """Return the parties that add and subtract; with a mutant, one party may do both."""
    adds, subtracts = ([party for party, flag in flags.items() if flag & bit] for bit in (1, 2))
    return adds[0], subtracts[0]


@statistical(alpha=1e-9)
def test_simulated_selection_is_uniform_over_pairs(entropy: SeededEntropy) -> None:
    parties = dict.fromkeys(range(5), ())

    def select_honestly() -> Pair:
        return find_pair(dict(select_pair(parties, entropy)))

    def select_independently() -> Pair:
        return entropy.below(5), entropy.below(5)

    def select_neighbours() -> Pair:
        first = entropy.below(5)
        return first, (first + 1 + entropy.below(3)) % 5

    def check(draw: Callable[[], Pair]) -> bool:
        return is_fair([draw() for _ in range(4_000)], 5, 1e-9)

    assert check(select_honestly)
    assert catches(lambda: check(select_independently))
    assert catches(lambda: check(select_neighbours))


@statistical(alpha=1e-9)
def test_selection_on_shares_is_uniform_over_pairs(entropy: SeededEntropy) -> None:
    """Run real processes with the system's entropy: seven times 31 selections among three."""

    def run_selections(program: str, n_runs: int) -> list[Pair]:
        pairs = []
        for _ in range(n_runs):
            with computing(program, [(), (), ()]) as children:
                ends = finish(children)
            pairs += [
                find_pair({party: ends[f"peer-{party}"] >> 2 * i & 3 for party in range(3)})
                for i in range(N_SELECTIONS)
            ]
        return pairs

    assert is_fair(run_selections("selections", 7), 3, 1e-9)
    assert catches(lambda: is_fair(run_selections("independent", 3), 3, 1e-9), tries=1)
