"""Two different parties are selected, each ordered pair equally often; in a simulation and on shares."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import permutations

import numpy as np

from joint_runs import computing, finish
from mpc_child import N_SELECTIONS
from shoal.entropy import SeededEntropy
from shoal.protocols.joint.computing import selected
from statistical.harness import catches, fits, statistical

Pair = tuple[int, int]


def is_fair(pairs: Iterable[Pair], n_parties: int, alpha: float) -> bool:
    """Whether ordered pairs of different parties are equally likely, and nothing else ever comes."""
    order = {pair: place for place, pair in enumerate(permutations(range(n_parties), 2))}
    counts = np.bincount([order.get(pair, len(order)) for pair in pairs], minlength=len(order) + 1)
    return counts[-1] == 0 and fits(counts[:-1], np.full(len(order), 1 / len(order)), alpha)


def pair_of(flags: dict[int, int]) -> Pair:
    """Who adds and who subtracts; a party may be both, with a mutant."""
    adds, subtracts = ([party for party, flag in flags.items() if flag & bit] for bit in (1, 2))
    return adds[0], subtracts[0]


@statistical(alpha=1e-9)
def test_the_selection_of_a_simulation(entropy: SeededEntropy) -> None:
    parties = dict.fromkeys(range(5), ())

    def honest() -> Pair:
        return pair_of(dict(selected(parties, entropy)))

    def independent() -> Pair:
        return entropy.below(5), entropy.below(5)

    def next_to_each_other() -> Pair:
        first = entropy.below(5)
        return first, (first + 1 + entropy.below(3)) % 5

    def check(draw: Callable[[], Pair]) -> bool:
        return is_fair([draw() for _ in range(4_000)], 5, 1e-9)

    assert check(honest)
    assert catches(lambda: check(independent))
    assert catches(lambda: check(next_to_each_other))


@statistical(alpha=1e-9)
def test_the_selection_on_shares(entropy: SeededEntropy) -> None:
    """Real processes, which draw from the operating system: seven times 31 selections among three."""

    def drawn(program: str, n_runs: int) -> list[Pair]:
        pairs = []
        for _ in range(n_runs):
            with computing(program, [(), (), ()]) as children:
                ends = finish(children)
            pairs += [pair_of({party: ends[f"peer-{party}"] >> 2 * i & 3 for party in range(3)}) for i in range(N_SELECTIONS)]
        return pairs

    assert is_fair(drawn("selections", 7), 3, 1e-9)
    assert catches(lambda: is_fair(drawn("independent", 3), 3, 1e-9), tries=1)
