"""The two ways of running AnonML have one law: real messages between machines, and a vectorised population.

What is published is held fixed, so that every person's answer has the same law in both. Then everything that can be counted is compared:
how many answer each question, and for each count of a question how many of those who answered support it. A person adds at most one to a
count, so that two such counts are compared by Fisher's exact test. It is conservative: rows are fixed, and vary less than draws of them.
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

from anonml_cases import FEATURES, FOUR, STUDY, TWO, make, people
from shoal.domain import Numeric, Schema
from shoal.entropy import Entropy, SeededEntropy
from shoal.mechanisms.response import RandomResponse
from shoal.messages.base import Message
from shoal.protocols.anonml import population
from shoal.protocols.anonml.assignment import Words, draw_words
from shoal.protocols.anonml.messages import Answer, Publication
from shoal.protocols.anonml.params import Paper, Params, Plus
from shoal.protocols.anonml.peer import AnonMLPeer, Waiting
from shoal.protocols.anonml.plus import PlusScript
from shoal.protocols.anonml.population import collect, make_script
from shoal.protocols.anonml.questions import Question, Rows, Tally
from shoal.protocols.anonml.script import Script, Tallies
from shoal.protocols.base import AGGREGATOR, run_local
from shoal.sim.network import Faults, run_network
from statistical.harness import statistical

ALPHA = 1e-9
COPIES = 30
BAD = Faults(loss=0.2, duplicate=0.3, min_delay=1, max_delay=2_000, crash=0.01, amnesia=0.5, downtime=2_000, retry=400)

POINTS = (6.0, 1.5, 7.0)
"""Points that searches ask about: far from the median, where yes and no would be alike."""

BINNED = Schema([Numeric("age", 0, 10, bins=[2, 4, 6]), *FEATURES[1:]], label=TWO.label)
STUDIES: dict[str, tuple[Params, int]] = {
    "bits": (Plus(BINNED, 1.4, 300), 1800),
    "tables": (Plus(BINNED, 2.9, 300), 1000),
    "blocks": (Plus(BINNED, 8.0, 5000), 1000),
    "classes": (Plus(Schema(BINNED.features, label=FOUR.label), 4.0, 300), 1000),
    "shuffled": (Plus(TWO, 4.0, 300, trust="shuffled"), 1000),
    "paper": (Paper(BINNED, 6.0, 300, n_partitions=2, n_subsets=2, subset_size=2), 500),
    "medians of the paper": (Paper(TWO, 9.0, 300, n_partitions=2, n_subsets=2, subset_size=2), 300),
    "placing": (Plus(TWO, 4.0, 300), 300),
}


@lru_cache
def fixed(kind: str) -> Script:
    """A script that publishes the same whatever is counted. In the study ``placing`` nearly all people place quantiles."""
    script = make_script(STUDIES[kind][0], STUDY)
    if kind == "placing":
        assert isinstance(script, PlusScript)
        script.rule = replace(script.rule, placing=Fraction(9, 10))
    columns, labels = people(script.params.schema, 3000)
    counted: Tallies = ()
    honest = script.publish
    shown: list[Publication] = []
    for phase in range(script.n_phases):
        shown.append(honest(counted) if phase >= script.n_steps else Publication(points=POINTS[: len(honest(()).points)]))
        script.publish = lambda tallies: shown[len(tallies)] if len(tallies) < len(shown) else honest(tallies)  # type: ignore[method-assign]
        counted = collect(script, Rows(columns, labels, draw_words(3000, SeededEntropy(1))), SeededEntropy(2))[: phase + 1]
    return script


def people_of(kind: str, copies: int = 1) -> tuple[dict[str, Any], Any]:
    columns, labels = people(fixed(kind).params.schema, STUDIES[kind][1])
    return {name: np.tile(column, copies) for name, column in columns.items()}, np.tile(labels, copies)


def by_messages(kind: str, seed: int, run: Callable[..., Any] = run_local, peer: type[AnonMLPeer] = AnonMLPeer, n: int = 0) -> Tallies:
    """Counts of a run of machines."""
    aggregator, peers = make(fixed(kind), n or STUDIES[kind][1], kind=peer, patience=timedelta(days=1))
    outcome = run(aggregator, peers, SeededEntropy(seed))
    assert not outcome.failed and not outcome.rejected and not outcome.aborted
    assert outcome.states[AGGREGATOR].late == 0
    tallies: Tallies = outcome.states[AGGREGATOR].tallies()
    return tallies


@lru_cache
def honest_messages(kind: str) -> Tallies:
    return by_messages(kind, 1)


def by_population(kind: str, entropy: Entropy, words: Callable[[int, Entropy], Words] = draw_words) -> Tallies:
    """Counts of a population in which everybody is there many times."""
    columns, labels = people_of(kind, COPIES)
    return collect(fixed(kind), Rows(columns, labels, words(len(labels), entropy)), entropy)


def pooled(kind: str, tallies: Tallies) -> list[Tally]:
    """The tally of each question; what was asked in several phases, about the same points, is one question."""
    n_steps = fixed(kind).n_steps
    placed = [sum(same[1:], start=same[0]) for same in zip(*tallies[:n_steps], strict=True)]
    return [*placed, *(tally for phase in tallies[n_steps:] for tally in phase)]


def same_law(kind: str, first: Tallies, second: Tallies, n_first: int = 0, alpha: float = ALPHA) -> bool:
    """Whether two runs of one study could have the same law, at a rate of false alarms of at most alpha in all."""
    totals = [sum(tally.n for phase in tallies for tally in phase) for tallies in (first, second)]
    if totals[0] * COPIES * STUDIES[kind][1] != totals[1] * (n_first or STUDIES[kind][1]):
        return False  # everyone answers as often as the study says, whatever is drawn
    asked = [np.array([tally.n for phase in tallies for tally in phase]) for tallies in (first, second)]
    # Questions may be so many that few answer each: all up to a question are compared too.
    pairs = zip(*(np.concatenate([n, np.cumsum(n)]).tolist() for n in asked), strict=True)
    tables = [[[a, totals[0] - a], [b, totals[1] - b]] for a, b in pairs]
    for one, other in zip(pooled(kind, first), pooled(kind, second), strict=True):
        tables += [[[a, one.n - a], [b, other.n - b]] for a, b in zip(one.counts.tolist(), other.counts.tolist(), strict=True)]
    return all(stats.fisher_exact(table).pvalue >= alpha / len(tables) for table in tables)


@statistical(alpha=ALPHA)
@pytest.mark.parametrize("kind", STUDIES)
def test_messages_and_population_have_one_law(kind: str, entropy: SeededEntropy) -> None:
    assert same_law(kind, by_messages(kind, entropy.below(1 << 32)), by_population(kind, entropy))


@statistical(alpha=ALPHA)
@pytest.mark.parametrize("kind", ["blocks", "medians of the paper"])
def test_a_bad_network_changes_nothing_but_the_time(kind: str, entropy: SeededEntropy) -> None:
    over = by_messages(kind, entropy.below(1 << 32), lambda *parties: run_network(*parties, BAD), n=60)
    assert same_law(kind, over, by_population(kind, entropy), n_first=60)


# Mutants: each changes the law of one of the paths, and the comparison must notice.

ALL = pytest.mark.parametrize("kind", STUDIES)


@ALL
def test_people_who_are_dealt_otherwise_are_caught(kind: str) -> None:
    """Words that are not uniform: other shares of the people for each question."""
    dealt = by_population(kind, SeededEntropy(3), lambda n, entropy: np.maximum(draw_words(n, entropy), draw_words(n, entropy)))
    assert not same_law(kind, honest_messages(kind), dealt)


@ALL
def test_a_population_that_answers_twice_is_caught(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = population.answer
    monkeypatch.setattr(population, "answer", lambda *asked: honest(*asked) + honest(*asked))
    assert not same_law(kind, honest_messages(kind), by_population(kind, SeededEntropy(4)))


@ALL
def test_a_population_whose_cells_are_moved_is_caught(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def moved(question: Question, rows: Rows, entropy: Entropy) -> Tally:
        assert question.mechanism is not None
        cells = (question.cells(rows) + 1) % question.n_cells
        return Tally(len(cells), question.count(question.mechanism.report_many(cells, entropy), rows.word))

    monkeypatch.setattr(population, "answer", moved)
    assert not same_law(kind, honest_messages(kind), by_population(kind, SeededEntropy(5)))


class WithoutNoise(AnonMLPeer):
    """Tells the truth where it is asked by random response."""

    def answer(self, state: Waiting, question: str, entropy: Entropy) -> Message:
        phase, number = self.mine[question]
        asked = self.script.questions(phase, state.heard[0].publication)[number]
        answer = super().answer(state, question, entropy)
        assert isinstance(answer, Answer)
        if not isinstance(asked.mechanism, RandomResponse):
            return answer
        return answer.replace(report=asked.mechanism.encode(int(asked.cells(self._row.reveal())[0])))


class WithoutLabel(AnonMLPeer):
    """Answers as if its label were the first."""

    def __init__(self, study: bytes, script: Script, ticket: bytes, columns: Any, label: Any) -> None:
        super().__init__(study, script, ticket, columns, np.zeros_like(label))


@pytest.mark.parametrize("kind", ["bits", "tables", "blocks", "classes", "shuffled", "paper"])
def test_peers_that_hide_their_label_are_caught(kind: str) -> None:
    assert not same_law(kind, by_messages(kind, 6, peer=WithoutLabel), by_population(kind, SeededEntropy(6)))


@pytest.mark.parametrize("kind", ["bits"])
def test_peers_that_add_no_noise_are_caught(kind: str) -> None:
    assert not same_law(kind, by_messages(kind, 7, peer=WithoutNoise), by_population(kind, SeededEntropy(7)))
