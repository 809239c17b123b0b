"""AnonML by messages and by the vectorised population: the distributions are equal.

Published messages are fixed, so that every person's answer has the same distribution in both. Then
all counts are compared: how many people answer each question, and for each count of a question how
many of those who answered support it. A person adds at most one to a count, so two such counts are
compared by Fisher's exact test. It is conservative: rows are fixed, and vary less than draws of
them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from scipy import stats

from shoal.data.schema import Numeric, Schema
from shoal.entropy import Entropy, SeededEntropy
from shoal.mechanisms.randomized_response import RandomizedResponse
from shoal.messages.base import Message
from shoal.protocols.anonml import population
from shoal.protocols.anonml.assignment import Words, draw_words
from shoal.protocols.anonml.messages import AnonMLAnswer, AnonMLPublication
from shoal.protocols.anonml.params import AnonMLPaperParams, AnonMLParams, AnonMLPlusParams
from shoal.protocols.anonml.peer import AnonMLPeer, AnonMLPeerState
from shoal.protocols.anonml.plus import AnonMLPlusScript
from shoal.protocols.anonml.population import collect_tallies
from shoal.protocols.anonml.questions import AssignedRows, Question, Tally
from shoal.protocols.anonml.script import AnonMLScript, Tallies
from shoal.protocols.anonml.variants import make_script
from shoal.protocols.base import AGGREGATOR, run_local
from shoal.simulation.network import Faults, run_network
from tests.statistical.harness import statistical
from tests.support.anonml import FEATURES, FOUR, STUDY, TWO, make, people

ALPHA = 1e-9
COPIES = 30
BAD = Faults(
    loss=0.2,
    duplicate=0.3,
    min_delay=1,
    max_delay=2_000,
    crash=0.01,
    amnesia=0.5,
    downtime=2_000,
    retry=400,
)

POINTS = (6.0, 1.5, 7.0)
"""Points that searches ask about, far from the median: at the median yes and no would be equally
likely.
"""

BINNED = Schema([Numeric("age", 0, 10, bins=[2, 4, 6]), *FEATURES[1:]], label=TWO.label)
STUDIES: dict[str, tuple[AnonMLParams, int]] = {
    "bits": (AnonMLPlusParams(BINNED, 1.4, 300), 1800),
    "tables": (AnonMLPlusParams(BINNED, 2.9, 300), 1000),
    "blocks": (AnonMLPlusParams(BINNED, 8.0, 5000), 1000),
    "classes": (AnonMLPlusParams(Schema(BINNED.features, label=FOUR.label), 4.0, 300), 1000),
    "shuffled": (AnonMLPlusParams(TWO, 4.0, 300, trust="shuffled"), 1000),
    "paper": (AnonMLPaperParams(BINNED, 6.0, 300, n_partitions=2, n_subsets=2, subset_size=2), 500),
    "medians of the paper": (
        AnonMLPaperParams(TWO, 9.0, 300, n_partitions=2, n_subsets=2, subset_size=2),
        300,
    ),
    "placing": (AnonMLPlusParams(TWO, 4.0, 300), 300),
}


@lru_cache
def make_fixed_script(kind: str) -> AnonMLScript:
    """Return a script that publishes the same for any counts.

    In the study ``placing`` nearly all people place quantiles.
    """
    script = make_script(STUDIES[kind][0], STUDY)
    if kind == "placing":
        assert isinstance(script, AnonMLPlusScript)
        script.rule = replace(script.rule, placing=Fraction(9, 10))
    columns, labels = people(script.params.schema, 3000)
    counted: Tallies = ()
    honest = script.publish
    shown: list[AnonMLPublication] = []
    for phase in range(script.n_phases):
        shown.append(
            honest(counted)
            if phase >= script.n_steps
            else AnonMLPublication(points=POINTS[: len(honest(()).points)])
        )
        script.publish = lambda tallies: (
            shown[len(tallies)] if len(tallies) < len(shown) else honest(tallies)
        )  # type: ignore[method-assign]
        counted = collect_tallies(
            script,
            AssignedRows(columns, labels, draw_words(3000, SeededEntropy(1))),
            SeededEntropy(2),
        )[: phase + 1]
    return script


def make_people(kind: str, copies: int = 1) -> tuple[dict[str, Any], Any]:
    columns, labels = people(make_fixed_script(kind).params.schema, STUDIES[kind][1])
    return {name: np.tile(column, copies) for name, column in columns.items()}, np.tile(
        labels, copies
    )


def count_by_messages(
    kind: str,
    seed: int,
    run: Callable[..., Any] = run_local,
    peer: type[AnonMLPeer] = AnonMLPeer,
    n: int = 0,
) -> Tallies:
    """Return the counts of a run of machines."""
    aggregator, peers = make(
        make_fixed_script(kind), n or STUDIES[kind][1], kind=peer, phase_timeout=timedelta(days=1)
    )
    outcome = run(aggregator, peers, SeededEntropy(seed))
    assert not outcome.failed and not outcome.rejected and not outcome.aborted
    assert outcome.states[AGGREGATOR].late == 0
    tallies: Tallies = outcome.states[AGGREGATOR].to_tallies()
    return tallies


@lru_cache
def honest_messages(kind: str) -> Tallies:
    return count_by_messages(kind, 1)


def count_by_population(
    kind: str, entropy: Entropy, words: Callable[[int, Entropy], Words] = draw_words
) -> Tallies:
    """Return the counts of a population that contains each person many times."""
    columns, labels = make_people(kind, COPIES)
    return collect_tallies(
        make_fixed_script(kind), AssignedRows(columns, labels, words(len(labels), entropy)), entropy
    )


def pool_tallies(kind: str, tallies: Tallies) -> list[Tally]:
    """Return the tally of each question.

    A question that was asked in several phases, about the same points, counts as one.
    """
    n_steps = make_fixed_script(kind).n_steps
    placed = [sum(same[1:], start=same[0]) for same in zip(*tallies[:n_steps], strict=True)]
    return [*placed, *(tally for phase in tallies[n_steps:] for tally in phase)]


def have_equal_distributions(
    kind: str, first: Tallies, second: Tallies, n_first: int = 0, alpha: float = ALPHA
) -> bool:
    """Return whether two runs of one study could have equal distributions.

    The false-positive rate is at most alpha in all.
    """
    totals = [sum(tally.n for phase in tallies for tally in phase) for tallies in (first, second)]
    if totals[0] * COPIES * STUDIES[kind][1] != totals[1] * (n_first or STUDIES[kind][1]):
        return False  # the number of answers is fixed by the study
    asked = [
        np.array([tally.n for phase in tallies for tally in phase]) for tallies in (first, second)
    ]
    # There may be many questions with few answers each, so all questions up to one are compared
    # together too.
    pairs = zip(*(np.concatenate([n, np.cumsum(n)]).tolist() for n in asked), strict=True)
    tables = [[[a, totals[0] - a], [b, totals[1] - b]] for a, b in pairs]
    for one, other in zip(pool_tallies(kind, first), pool_tallies(kind, second), strict=True):
        tables += [
            [[a, one.n - a], [b, other.n - b]]
            for a, b in zip(one.counts.tolist(), other.counts.tolist(), strict=True)
        ]
    return all(stats.fisher_exact(table).pvalue >= alpha / len(tables) for table in tables)


@statistical(alpha=ALPHA)
@pytest.mark.parametrize("kind", STUDIES)
def test_anonml_messages_and_population_have_equal_distributions(
    kind: str, entropy: SeededEntropy
) -> None:
    assert have_equal_distributions(
        kind, count_by_messages(kind, entropy.below(1 << 32)), count_by_population(kind, entropy)
    )


@statistical(alpha=ALPHA)
@pytest.mark.parametrize("kind", ["blocks", "medians of the paper"])
def test_anonml_counts_on_bad_network_have_equal_distribution(
    kind: str, entropy: SeededEntropy
) -> None:
    over = count_by_messages(
        kind, entropy.below(1 << 32), lambda *parties: run_network(*parties, BAD), n=60
    )
    assert have_equal_distributions(kind, over, count_by_population(kind, entropy), n_first=60)


# Mutants: each changes the distribution of one path, and the comparison must reject it.

ALL = pytest.mark.parametrize("kind", STUDIES)


@ALL
def test_comparison_catches_other_assignment_of_people(kind: str) -> None:
    """Assign people by words that are not uniform: questions get other shares of them."""
    dealt = count_by_population(
        kind,
        SeededEntropy(3),
        lambda n, entropy: np.maximum(draw_words(n, entropy), draw_words(n, entropy)),
    )
    assert not have_equal_distributions(kind, honest_messages(kind), dealt)


@ALL
def test_comparison_catches_population_that_answers_twice(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = population.answer_question
    monkeypatch.setattr(
        population, "answer_question", lambda *asked: honest(*asked) + honest(*asked)
    )
    assert not have_equal_distributions(
        kind, honest_messages(kind), count_by_population(kind, SeededEntropy(4))
    )


@ALL
def test_comparison_catches_population_with_moved_cells(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer_with_moved_cells(question: Question, rows: AssignedRows, entropy: Entropy) -> Tally:
        assert question.mechanism is not None
        cells = (question.find_cells(rows) + 1) % question.n_cells
        return Tally(
            len(cells),
            question.count(question.mechanism.report_many(cells, entropy), rows.chosen_words),
        )

    monkeypatch.setattr(population, "answer_question", answer_with_moved_cells)
    assert not have_equal_distributions(
        kind, honest_messages(kind), count_by_population(kind, SeededEntropy(5))
    )


class WithoutNoise(AnonMLPeer):
    """A mutant that answers truthfully if the mechanism is randomised response."""

    def answer(self, state: AnonMLPeerState, question: str, entropy: Entropy) -> Message:
        phase, number = self.own_questions[question]
        asked = self.script.questions(phase, state.heard[0].publication)[number]
        answer = super().answer(state, question, entropy)
        assert isinstance(answer, AnonMLAnswer)
        if not isinstance(asked.mechanism, RandomizedResponse):
            return answer
        return answer.replace(
            report=asked.mechanism.encode(int(asked.find_cells(self._row.reveal())[0]))
        )


class WithoutLabel(AnonMLPeer):
    """A mutant that answers as if its label were the first."""

    def __init__(
        self, study: bytes, script: AnonMLScript, ticket: bytes, columns: Any, label: Any
    ) -> None:
        super().__init__(study, script, ticket, columns, np.zeros_like(label))


@pytest.mark.parametrize("kind", ["bits", "tables", "blocks", "classes", "shuffled", "paper"])
def test_comparison_catches_peers_that_hide_their_label(kind: str) -> None:
    assert not have_equal_distributions(
        kind,
        count_by_messages(kind, 6, peer=WithoutLabel),
        count_by_population(kind, SeededEntropy(6)),
    )


@pytest.mark.parametrize("kind", ["bits"])
def test_comparison_catches_peers_without_noise(kind: str) -> None:
    assert not have_equal_distributions(
        kind,
        count_by_messages(kind, 7, peer=WithoutNoise),
        count_by_population(kind, SeededEntropy(7)),
    )
