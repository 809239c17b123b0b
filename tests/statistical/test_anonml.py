"""AnonML's draws: questions by ticket, features of a block, counts of a population."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest

from shoal.entropy import SeededEntropy
from shoal.protocols.anonml.assignment import Words, draw_words, ticket_words, unrank_combinations
from shoal.protocols.anonml.plus import AnonMLPlusScript
from shoal.protocols.anonml.population import answer_question
from shoal.protocols.anonml.questions import AssignedRows, BlockQuestion, Question, make_response
from tests.statistical.harness import catches, fits, is_chance, statistical
from tests.support.anonml import STUDY, build_named_script, people, publications

ALPHA = 1e-9


@statistical(alpha=ALPHA)
def test_tickets_select_questions_in_proportion_to_their_shares(entropy: SeededEntropy) -> None:
    script = build_named_script("bits")
    assert isinstance(script, AnonMLPlusScript)
    words = np.concatenate([ticket_words(STUDY, entropy.bytes(32)) for _ in range(20_000)])

    def count_assignments(words: Words) -> npt.NDArray[np.int64]:
        groups = np.stack([script.assign_groups(phase, words) for phase in range(script.n_phases)])
        return np.array(
            [np.count_nonzero(groups[slot.phase] == slot.question) for slot in script.slots]
        )

    shares = [float(slot.share) for slot in script.slots]
    assert fits(count_assignments(words), shares, ALPHA)
    # The mutant takes the better of two tickets: a person who may choose a ticket chooses the
    # question.
    assert catches(
        lambda: fits(count_assignments(np.maximum(words[::2], words[1::2])), shares, ALPHA)
    )


@statistical(alpha=ALPHA)
def test_feature_combinations_are_equally_likely(entropy: SeededEntropy) -> None:
    n, k, people = 7, 3, 20_000
    every = {chosen: i for i, chosen in enumerate(combinations(range(n), k))}

    def count_combinations(chosen: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.bincount([every[tuple(one)] for one in chosen.tolist()], minlength=len(every))

    uniform = [1 / len(every)] * len(every)
    assert fits(
        count_combinations(unrank_combinations(draw_words(people, entropy)[:, 1], n, k)),
        uniform,
        ALPHA,
    )

    def draw_neighbouring_features() -> npt.NDArray[np.int64]:
        """Draw a feature and its neighbours more often than others: a mutant."""
        first = entropy.below_many(n - k + 1, people)
        return np.stack(
            [first, first + 1, first + 2 + entropy.below_many(n, people) % (n - 2 - first)], axis=1
        )

    assert catches(lambda: fits(count_combinations(draw_neighbouring_features()), uniform, ALPHA))


def compute_support_chances(
    question: Question, cells: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Return the chance that an answer supports each cell, averaged over people.

    The people have these true cells.
    """
    assert question.mechanism is not None
    p, q = float(question.mechanism.p), float(question.mechanism.q)
    return q + (p - q) * np.bincount(cells, minlength=question.n_cells) / cells.size


def make_noisier_question(
    question: Question,
) -> Callable[[AssignedRows, SeededEntropy], npt.NDArray[np.int64]]:
    """Return a mutant that answers with seven tenths of the budget."""

    def counts(rows: AssignedRows, entropy: SeededEntropy) -> npt.NDArray[np.int64]:
        assert question.mechanism is not None
        other = type(question.mechanism)(0.7 * question.mechanism.epsilon, question.n_cells)  # type: ignore[call-arg]
        return other.tally(other.report_many(question.find_cells(rows), entropy))

    return counts


@statistical(alpha=ALPHA)
@pytest.mark.parametrize("name", ["bits", "grids", "classes", "paper"])
def test_population_counts_have_distribution_of_mechanism(
    name: str, entropy: SeededEntropy
) -> None:
    script = build_named_script(name)
    n = 40_000
    rows = AssignedRows(*people(script.params.schema, n), draw_words(n, entropy))
    asked = [
        question
        for phase, shown in enumerate(publications(script))
        if phase in (0, script.n_phases - 1)
        for question in script.questions(phase, shown)
    ]
    n_tests = sum(question.n_cells for question in asked)

    def fits_distribution(question: Question, counts: npt.NDArray[np.int64]) -> bool:
        chances = compute_support_chances(question, question.find_cells(rows))
        return all(
            is_chance(int(count), n, chance, ALPHA / n_tests)
            for count, chance in zip(counts, chances, strict=True)
        )

    for question in asked:
        tally = answer_question(question, rows, entropy)
        assert tally.n == n
        assert fits_distribution(question, tally.counts)
    largest = max(asked, key=lambda question: question.n_cells)
    assert catches(
        lambda: fits_distribution(largest, make_noisier_question(largest)(rows, entropy))
    )


@statistical(alpha=ALPHA)
def test_block_counts_have_distribution_of_randomized_response(entropy: SeededEntropy) -> None:
    """Check tables of one feature with the label.

    A report is the truth with chance p - q, and otherwise uniform over all six cells of the table.
    """
    script = build_named_script("blocks")
    (honest,) = script.questions(script.n_phases - 1, publications(script)[-1])
    assert isinstance(honest, BlockQuestion) and honest.mechanism is not None
    block = BlockQuestion("levels", make_response(4.0, 2 * 3**2), honest.features, honest.levels, 2)
    n = 60_000
    columns, labels = people(script.params.schema, n)
    rows = AssignedRows(columns, labels, draw_words(n, entropy))
    kept = float(make_response(4.0, 18).p - make_response(4.0, 18).q)
    chances = []
    for feature, levels in zip(block.features, block.levels, strict=True):
        cells = levels[feature.cut(columns[feature.name])] * 2 + labels
        chances += (kept * np.bincount(cells, minlength=6) / n + (1 - kept) / 6).tolist()

    def fits_distribution(counts: npt.NDArray[np.int64], words: Words) -> bool:
        asked = unrank_combinations(words[:, 1], 4, 2)
        about = np.repeat([np.count_nonzero(asked == j) for j in range(4)], 6)
        singles = counts[: block.n_singles]
        return all(
            is_chance(*case, ALPHA / 24)
            for case in zip(singles.tolist(), about.tolist(), chances, strict=True)
        )

    tally = answer_question(block, rows, entropy)
    assert fits_distribution(tally.counts, rows.words)
    # The mutant counts each report for the features of another person.
    reports = block.mechanism.report_many(block.find_cells(rows), entropy)  # type: ignore[union-attr]
    others = np.roll(rows.words, 1, axis=0)
    assert catches(lambda: fits_distribution(block.count(reports, others), others))
