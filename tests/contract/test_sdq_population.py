"""SDQ by messages and by the simulated population: the distributions are equal.

A secure sum is exact, so the value that a round opens is the sum of the databases' inputs. The
noise of that sum is compared with the noise of the population.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

import numpy as np
import pytest
from scipy import stats

from shoal.entropy import Entropy, SeededEntropy
from shoal.protocols.base import AGGREGATOR, Effects, Input, MemoryLedger, run_local
from shoal.protocols.sdq.aggregator import SDQResult
from shoal.protocols.sdq.params import CellTable, Ints, SDQParams
from shoal.protocols.sdq.peer import SDQPeer, SDQPeerState
from shoal.protocols.sdq.population import draw_answer, simulate
from shoal.protocols.sdq.script import SDQRound, SDQScriptState
from shoal.protocols.sdq.variants import make_sdq_script
from shoal.simulation.machines import make_sdq_machines
from tests.statistical.harness import catches, statistical
from tests.support.sdq import (
    ARITIES,
    STUDIES,
    Bare,
    CentralID3,
    N,
    check_complete,
    make,
    make_schema,
    parted,
    pooled,
    random_table,
    tables,
)

ALPHA = 1e-9
NURSERY = (3, 5, 4, 4, 3, 2, 3, 3)
"""Arities of the Nursery table; it has five classes."""


# Without noise.


@pytest.mark.parametrize("name", STUDIES)
def test_noiseless_sdq_messages_and_population_open_same_sums(name: str) -> None:
    script = make_sdq_script(replace(STUDIES[name], epsilon=math.inf))
    aggregator, peers = make_sdq_machines(script, tables(), peer=Bare)
    ledgers = {one: MemoryLedger() for one in peers}
    result = check_complete(
        peers, run_local(aggregator, peers, SeededEntropy(1), ledgers=ledgers), ledgers
    )
    trained = simulate(script, pooled(), SeededEntropy(1))
    assert result.course == trained.course
    assert [one.tolist() for one in result.answers] == [one.tolist() for one in trained.answers]
    assert repr(result.model) == repr(trained.model)


def test_noiseless_sdq_tree_of_secure_sums_is_plain_id3() -> None:
    """Use the sizes of the paper's experiments, and rows with a label that depends on them.

    The numbers of databases, attributes and classes are those of the paper.
    """
    table = random_table(NURSERY, 5, 1500, 3, 10)
    params = SDQParams(
        make_schema(NURSERY, 5),
        math.inf,
        1500,
        n_databases=10,
        minimum=10,
        variant="paper",
        depth=4,
    )
    script = make_sdq_script(params)
    aggregator, peers = make_sdq_machines(script, list(parted(table)), peer=Bare)
    outcome = run_local(aggregator, peers, SeededEntropy(1))
    result = outcome.results[AGGREGATOR]
    assert isinstance(result, SDQResult) and not outcome.rejected and not outcome.failed
    own = simulate(
        script, CellTable(table.cells, table.labels, np.zeros(1500, np.int64)), SeededEntropy(2)
    ).model
    assert result.model.to_text() == own.to_text()
    central = CentralID3(table, NURSERY, 5, 4)
    fresh = random_table(NURSERY, 5, 2000, 4)
    columns = {name: fresh.cells[:, j] for j, name in enumerate(params.schema.names)}
    assert result.model.decide(columns).tolist() == [
        central.predict(cells) for cells in fresh.cells.tolist()
    ]


# With noise.


class RecordingPeer(SDQPeer):
    """A database that records its input to each round."""

    def step(
        self, state: SDQPeerState, given: Input, now: datetime, entropy: Entropy
    ) -> tuple[SDQPeerState, Effects]:
        self.inputs: dict[str, Ints] = getattr(self, "inputs", {})
        return super().step(state, given, now, entropy)

    def draw_noisy_answer(
        self, asked: SDQRound, table: CellTable, role: int | None, entropy: Entropy
    ) -> Ints:
        self.inputs[asked.question] = super().draw_noisy_answer(asked, table, role, entropy)
        return self.inputs[asked.question]


@pytest.mark.parametrize("name", STUDIES)
def test_sdq_miner_sees_sum_of_inputs_of_databases(name: str) -> None:
    aggregator, peers = make(name, peer=RecordingPeer)
    result = run_local(aggregator, peers, SeededEntropy(5)).results[AGGREGATOR]
    assert isinstance(result, SDQResult)
    script, state = aggregator.script, SDQScriptState()
    for number, seen in enumerate(result.answers):
        asked = script.make_round(state)
        assert asked is not None
        sums = np.sum([peer.inputs[asked.question] for peer in peers.values()], axis=0)  # type: ignore[attr-defined]
        assert seen.tolist() == ([int(np.argmax(sums))] if asked.is_choice else sums.tolist())
        state = script.advance(state, result.answers[: number + 1])


def sum_inputs(
    params: SDQParams, peers: Sequence[SDQPeer], asked: SDQRound, entropy: SeededEntropy
) -> Ints:
    """Return the sum of the inputs of some databases to a round.

    Two of them are selected if the study says so.
    """
    roles: list[int | None] = [None] * len(peers)
    if params.noise == "two-selected":
        roles = [1, 2, *[0] * (len(peers) - 2)]
    drawn = [
        peer.draw_noisy_answer(asked, peer._table.reveal(), role, entropy.spawn(i))
        for i, (peer, role) in enumerate(zip(peers, roles, strict=True))
    ]
    return np.sum(drawn, axis=0)


def have_equal_distributions(one: Ints, other: Ints, alpha: float = ALPHA) -> bool:
    """Return whether two samples of integers could have equal distributions.

    It is a chi-square test of two rows of cells with enough counts in each.
    """
    cuts = np.unique(np.quantile(np.concatenate([one, other]), np.linspace(0, 1, 21)[1:-1]))
    rows = [
        np.bincount(np.searchsorted(cuts, sample), minlength=len(cuts) + 1)
        for sample in (one, other)
    ]
    kept = np.array(rows)[:, np.sum(rows, axis=0) > 0]
    return bool(stats.chi2_contingency(kept).pvalue >= alpha)


KINDS = {"paper": 5, "enough": 4, "selected": 5, "local": 5}
"""Study, and number of databases that answer."""


def draw_samples(
    kind: str, entropy: SeededEntropy, mutant: SDQParams | None = None, n_runs: int = 60
) -> tuple[Ints, Ints]:
    """Return the noise of one round by databases and by the population.

    The figures of a mutant are for the population alone.
    """
    params = STUDIES["paper" if kind == "enough" else kind]
    n = KINDS[kind]
    aggregator, peers = make("paper" if kind == "enough" else kind)
    asked = aggregator.script.make_round(SDQScriptState(step=1, leaves=(False,)))
    assert asked is not None
    answering = list(peers.values())[:n]
    rows = [peer._table.reveal() for peer in answering]
    table = CellTable(
        np.concatenate([one.cells for one in rows]), np.concatenate([one.labels for one in rows])
    )
    truth = np.sum(
        [np.concatenate([part.count(one) for part in asked.parts]) for one in rows], axis=0
    )
    by_databases = [
        sum_inputs(params, answering, asked, entropy.spawn("databases", i)) - truth
        for i in range(n_runs)
    ]
    by_population = [
        draw_answer(mutant or params, asked, table, n, entropy.spawn("population", i)) - truth
        for i in range(n_runs)
    ]
    return np.concatenate(by_databases), np.concatenate(by_population)


@statistical(alpha=len(KINDS) * ALPHA)
def test_sdq_databases_and_population_have_equal_noise(entropy: SeededEntropy) -> None:
    seed = SeededEntropy(entropy.word())
    for kind in KINDS:
        one, other = draw_samples(kind, seed.spawn(kind))
        assert len(one) == 60 * sum(ARITIES) * 3
        assert have_equal_distributions(one, other)
    # A mutant: noise for another number of colluders.
    honest = replace(STUDIES["paper"], max_colluders=3)
    assert catches(
        lambda: have_equal_distributions(
            *draw_samples("paper", SeededEntropy(entropy.word()), mutant=honest, n_runs=120)
        )
    )


def draw_choices(entropy: SeededEntropy, n_shares: int = N, n_runs: int = 500) -> tuple[Ints, Ints]:
    """Return the chosen candidates by databases and by population, if noise decides."""
    aggregator, peers = make("plus", changes={"epsilon": 1.0})
    asked = aggregator.script.make_round(SDQScriptState())
    assert asked is not None and asked.is_choice
    by_databases = [
        np.argmax(
            sum_inputs(
                aggregator.params, list(peers.values()), asked, entropy.spawn("databases", i)
            )
        )
        for i in range(n_runs)
    ]
    by_population = [
        draw_answer(aggregator.params, asked, pooled(), n_shares, entropy.spawn("population", i))[0]
        for i in range(n_runs)
    ]
    return np.array(by_databases), np.array(by_population)


@statistical(alpha=ALPHA)
def test_sdq_databases_and_population_have_equal_choices(entropy: SeededEntropy) -> None:
    one, other = draw_choices(SeededEntropy(entropy.word()))
    assert len(np.unique(one)) == 3
    assert have_equal_distributions(one, other)
    # A mutant: the shares of sixty databases.
    assert catches(
        lambda: have_equal_distributions(*draw_choices(SeededEntropy(entropy.word()), n_shares=60))
    )
