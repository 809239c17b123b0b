"""AnonML's draws: who is asked what, which features a block is about, and the counts of a population."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest

from anonml_cases import STUDY, people, publications, script_of
from shoal.entropy import SeededEntropy
from shoal.protocols.anonml.assignment import Words, combination_of, draw_words, words_of
from shoal.protocols.anonml.plus import PlusScript
from shoal.protocols.anonml.population import answer
from shoal.protocols.anonml.questions import Block, Question, Rows, response
from statistical.harness import catches, fits, is_chance, statistical

ALPHA = 1e-9


@statistical(alpha=ALPHA)
def test_tickets_are_dealt_to_the_questions_by_their_shares(entropy: SeededEntropy) -> None:
    script = script_of("bits")
    assert isinstance(script, PlusScript)
    words = np.concatenate([words_of(STUDY, entropy.bytes(32)) for _ in range(20_000)])

    def dealt(words: Words) -> npt.NDArray[np.int64]:
        groups = np.stack([script.group_of(phase, words) for phase in range(script.n_phases)])
        return np.array([np.count_nonzero(groups[slot.phase] == slot.question) for slot in script.slots])

    shares = [float(slot.share) for slot in script.slots]
    assert fits(dealt(words), shares, ALPHA)
    # The mutant chooses the better of two tickets: who may choose among tickets chooses the question.
    assert catches(lambda: fits(dealt(np.maximum(words[::2], words[1::2])), shares, ALPHA))


@statistical(alpha=ALPHA)
def test_every_combination_of_features_is_as_likely(entropy: SeededEntropy) -> None:
    n, k, people = 7, 3, 20_000
    every = {chosen: i for i, chosen in enumerate(combinations(range(n), k))}

    def spread(chosen: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.bincount([every[tuple(one)] for one in chosen.tolist()], minlength=len(every))

    uniform = [1 / len(every)] * len(every)
    assert fits(spread(combination_of(draw_words(people, entropy)[:, 1], n, k)), uniform, ALPHA)

    def window() -> npt.NDArray[np.int64]:
        """The mutant takes a feature and its neighbours more often than others."""
        first = entropy.below_many(n - k + 1, people)
        return np.stack([first, first + 1, first + 2 + entropy.below_many(n, people) % (n - 2 - first)], axis=1)

    assert catches(lambda: fits(spread(window()), uniform, ALPHA))


def law(question: Question, cells: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The chance that an answer supports each cell, averaged over people with these true cells."""
    assert question.mechanism is not None
    p, q = float(question.mechanism.p), float(question.mechanism.q)
    return q + (p - q) * np.bincount(cells, minlength=question.n_cells) / cells.size


def noisier(question: Question) -> Callable[[Rows, SeededEntropy], npt.NDArray[np.int64]]:
    """A mutant that answers with seven tenths of the budget."""

    def counts(rows: Rows, entropy: SeededEntropy) -> npt.NDArray[np.int64]:
        assert question.mechanism is not None
        other = type(question.mechanism)(0.7 * question.mechanism.epsilon, question.n_cells)  # type: ignore[call-arg]
        return other.tally(other.report_many(question.cells(rows), entropy))

    return counts


@statistical(alpha=ALPHA)
@pytest.mark.parametrize("name", ["bits", "grids", "classes", "paper"])
def test_counts_have_the_law_of_the_mechanism(name: str, entropy: SeededEntropy) -> None:
    script = script_of(name)
    n = 40_000
    rows = Rows(*people(script.params.schema, n), draw_words(n, entropy))
    asked = [question for phase, shown in enumerate(publications(script)) if phase in (0, script.n_phases - 1)
             for question in script.questions(phase, shown)]  # fmt: skip
    n_tests = sum(question.n_cells for question in asked)

    def is_law(question: Question, counts: npt.NDArray[np.int64]) -> bool:
        chances = law(question, question.cells(rows))
        return all(is_chance(int(count), n, chance, ALPHA / n_tests) for count, chance in zip(counts, chances, strict=True))

    for question in asked:
        tally = answer(question, rows, entropy)
        assert tally.n == n
        assert is_law(question, tally.counts)
    largest = max(asked, key=lambda question: question.n_cells)
    assert catches(lambda: is_law(largest, noisier(largest)(rows, entropy)))


@statistical(alpha=ALPHA)
def test_counts_of_blocks_have_the_law_of_random_response(entropy: SeededEntropy) -> None:
    """A table of one feature with the label: the truth with chance p - q, and otherwise uniform over all six cells of the table."""
    script = script_of("blocks")
    (honest,) = script.questions(script.n_phases - 1, publications(script)[-1])
    assert isinstance(honest, Block) and honest.mechanism is not None
    block = Block("levels", response(4.0, 2 * 3**2), honest.features, honest.levels, 2)
    n = 60_000
    columns, labels = people(script.params.schema, n)
    rows = Rows(columns, labels, draw_words(n, entropy))
    kept = float(response(4.0, 18).p - response(4.0, 18).q)
    chances = []
    for feature, levels in zip(block.features, block.levels, strict=True):
        cells = levels[feature.cut(columns[feature.name])] * 2 + labels
        chances += (kept * np.bincount(cells, minlength=6) / n + (1 - kept) / 6).tolist()

    def is_law(counts: npt.NDArray[np.int64], words: Words) -> bool:
        asked = combination_of(words[:, 1], 4, 2)
        about = np.repeat([np.count_nonzero(asked == j) for j in range(4)], 6)
        singles = counts[: block.n_singles]
        return all(is_chance(*case, ALPHA / 24) for case in zip(singles.tolist(), about.tolist(), chances, strict=True))

    tally = answer(block, rows, entropy)
    assert is_law(tally.counts, rows.words)
    # The mutant counts each report for the features of somebody else.
    reports = block.mechanism.report_many(block.cells(rows), entropy)  # type: ignore[union-attr]
    others = np.roll(rows.words, 1, axis=0)
    assert catches(lambda: is_law(block.count(reports, others), others))
