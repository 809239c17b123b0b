"""The two ways of running SDQ have one law: real messages between machines, and a simulated population.

A secure sum is exact, so what a round opens is the sum of what the databases put in; whose noise is compared with the population's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

import numpy as np
import pytest
from scipy import stats

from sdq_cases import ARITIES, STUDIES, Bare, N, check_complete, make, pooled, tables
from sdq_trees import CentralID3, parted, random_table, schema_of
from shoal.entropy import Entropy, SeededEntropy
from shoal.protocols.base import AGGREGATOR, Effects, Input, MemoryLedger, run_local
from shoal.protocols.sdq.aggregator import Mined
from shoal.protocols.sdq.following import Following
from shoal.protocols.sdq.params import Ints, Params, Table
from shoal.protocols.sdq.peer import SDQPeer
from shoal.protocols.sdq.population import answer, simulate
from shoal.protocols.sdq.script import Course, Round
from shoal.protocols.sdq.scripts import script_of
from shoal.sim.sdq_machines import machines
from statistical.harness import catches, statistical

ALPHA = 1e-9
NURSERY = (3, 5, 4, 4, 3, 2, 3, 3)
"""Arities of the Nursery table; it has five classes."""


# Without noise.


@pytest.mark.parametrize("name", STUDIES)
def test_without_noise_both_see_the_same_sums(name: str) -> None:
    script = script_of(replace(STUDIES[name], epsilon=math.inf))
    aggregator, peers = machines(script, tables(), peer=Bare)
    ledgers = {one: MemoryLedger() for one in peers}
    mined = check_complete(peers, run_local(aggregator, peers, SeededEntropy(1), ledgers=ledgers), ledgers)
    trained = simulate(script, pooled(), SeededEntropy(1))
    assert mined.course == trained.course
    assert [one.tolist() for one in mined.answers] == [one.tolist() for one in trained.answers]
    assert repr(mined.model) == repr(trained.model)


def test_without_noise_the_tree_of_secure_sums_is_plain_id3() -> None:
    """As many databases, attributes and classes as in the paper's experiments, and rows in which the label leans on the attributes."""
    table = random_table(NURSERY, 5, 1500, 3, 10)
    params = Params(schema_of(NURSERY, 5), math.inf, 1500, n_databases=10, minimum=10, variant="paper", depth=4)
    script = script_of(params)
    aggregator, peers = machines(script, list(parted(table)), peer=Bare)
    outcome = run_local(aggregator, peers, SeededEntropy(1))
    mined = outcome.results[AGGREGATOR]
    assert isinstance(mined, Mined) and not outcome.rejected and not outcome.failed
    own = simulate(script, Table(table.cells, table.labels, np.zeros(1500, np.int64)), SeededEntropy(2)).model
    assert mined.model.to_text() == own.to_text()
    central = CentralID3(table, NURSERY, 5, 4)
    fresh = random_table(NURSERY, 5, 2000, 4)
    columns = {name: fresh.cells[:, j] for j, name in enumerate(params.schema.names)}
    assert mined.model.decide(columns).tolist() == [central.predict(cells) for cells in fresh.cells.tolist()]


# With noise.


class Telling(SDQPeer):
    """Writes down what it puts into each round."""

    def step(self, state: Following, given: Input, now: datetime, entropy: Entropy) -> tuple[Following, Effects]:
        self.told: dict[str, Ints] = getattr(self, "told", {})
        return super().step(state, given, now, entropy)

    def noisy(self, asked: Round, table: Table, role: int | None, entropy: Entropy) -> Ints:
        self.told[asked.question] = super().noisy(asked, table, role, entropy)
        return self.told[asked.question]


@pytest.mark.parametrize("name", STUDIES)
def test_what_the_miner_sees_is_the_sum_of_what_the_databases_put_in(name: str) -> None:
    aggregator, peers = make(name, peer=Telling)
    mined = run_local(aggregator, peers, SeededEntropy(5)).results[AGGREGATOR]
    assert isinstance(mined, Mined)
    script, course = aggregator.script, Course()
    for number, seen in enumerate(mined.answers):
        asked = script.round(course)
        assert asked is not None
        sums = np.sum([peer.told[asked.question] for peer in peers.values()], axis=0)  # type: ignore[attr-defined]
        assert seen.tolist() == ([int(np.argmax(sums))] if asked.is_choice else sums.tolist())
        course = script.advance(course, mined.answers[: number + 1])


def put_in(params: Params, peers: Sequence[SDQPeer], asked: Round, entropy: SeededEntropy) -> Ints:
    """The sum of what some databases put into a round, two of them selected where the study says so."""
    roles: list[int | None] = [None] * len(peers)
    if params.noise == "two-selected":
        roles = [1, 2, *[0] * (len(peers) - 2)]
    drawn = [
        peer.noisy(asked, peer._table.reveal(), role, entropy.spawn(i)) for i, (peer, role) in enumerate(zip(peers, roles, strict=True))
    ]
    return np.sum(drawn, axis=0)


def same_law(one: Ints, other: Ints, alpha: float = ALPHA) -> bool:
    """Whether two samples of whole numbers could have one law, by a chi-square test of two rows of cells with enough in each."""
    cuts = np.unique(np.quantile(np.concatenate([one, other]), np.linspace(0, 1, 21)[1:-1]))
    rows = [np.bincount(np.searchsorted(cuts, sample), minlength=len(cuts) + 1) for sample in (one, other)]
    kept = np.array(rows)[:, np.sum(rows, axis=0) > 0]
    return bool(stats.chi2_contingency(kept).pvalue >= alpha)


KINDS = {"paper": 5, "enough": 4, "selected": 5, "local": 5}
"""Study, and how many databases answer."""


def samples(kind: str, entropy: SeededEntropy, mutant: Params | None = None, n_runs: int = 60) -> tuple[Ints, Ints]:
    """The noise of one round by databases and by the population; a mutant's figures are for the population alone."""
    params = STUDIES["paper" if kind == "enough" else kind]
    n = KINDS[kind]
    aggregator, peers = make("paper" if kind == "enough" else kind)
    asked = aggregator.script.round(Course(step=1, leaves=(False,)))
    assert asked is not None
    answering = list(peers.values())[:n]
    rows = [peer._table.reveal() for peer in answering]
    table = Table(np.concatenate([one.cells for one in rows]), np.concatenate([one.labels for one in rows]))
    truth = np.sum([np.concatenate([part.count(one) for part in asked.parts]) for one in rows], axis=0)
    by_databases = [put_in(params, answering, asked, entropy.spawn("databases", i)) - truth for i in range(n_runs)]
    by_population = [answer(mutant or params, asked, table, n, entropy.spawn("population", i)) - truth for i in range(n_runs)]
    return np.concatenate(by_databases), np.concatenate(by_population)


@statistical(alpha=len(KINDS) * ALPHA)
def test_databases_and_population_have_one_law_of_noise(entropy: SeededEntropy) -> None:
    seed = SeededEntropy(entropy.word())
    for kind in KINDS:
        one, other = samples(kind, seed.spawn(kind))
        assert len(one) == 60 * sum(ARITIES) * 3
        assert same_law(one, other)
    # A mutant: noise for another number of colluders.
    honest = replace(STUDIES["paper"], max_colluders=3)
    assert catches(lambda: same_law(*samples("paper", SeededEntropy(entropy.word()), mutant=honest, n_runs=120)))


def choices(entropy: SeededEntropy, n_shares: int = N, n_runs: int = 500) -> tuple[Ints, Ints]:
    """Which candidate is chosen, by databases and by the population, where noise decides."""
    aggregator, peers = make("plus", changes={"epsilon": 1.0})
    asked = aggregator.script.round(Course())
    assert asked is not None and asked.is_choice
    by_databases = [np.argmax(put_in(aggregator.params, list(peers.values()), asked, entropy.spawn("databases", i))) for i in range(n_runs)]
    by_population = [answer(aggregator.params, asked, pooled(), n_shares, entropy.spawn("population", i))[0] for i in range(n_runs)]
    return np.array(by_databases), np.array(by_population)


@statistical(alpha=ALPHA)
def test_databases_and_population_have_one_law_of_choices(entropy: SeededEntropy) -> None:
    one, other = choices(SeededEntropy(entropy.word()))
    assert len(np.unique(one)) == 3
    assert same_law(one, other)
    # A mutant: the shares of sixty databases.
    assert catches(lambda: same_law(*choices(SeededEntropy(entropy.word()), n_shares=60)))
