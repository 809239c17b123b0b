"""Each question against a plain reading of single rows."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from anonml_cases import FEATURES, TWO, people
from shoal.domain import Feature, Numeric
from shoal.entropy import SeededEntropy
from shoal.mechanisms.response import RandomResponse
from shoal.protocols.anonml.assignment import combination_of, draw_words
from shoal.protocols.anonml.questions import Above, Agree, Block, Cell, LabelIs, Question, Rows, Side, Tally, response, table_mechanism

N = 200
COLUMNS, LABELS = people(TWO, N)
ROWS = Rows(COLUMNS, LABELS, draw_words(N, SeededEntropy(1)))
AGE, HEIGHT, TOWN, JOB = Numeric("age", 0, 10, bins=[3, 6]), *FEATURES[1:]
BIT = response(1.0)


def bin_of(feature: Feature, value: Any) -> int:
    """The bin of one encoded value, by the words of the schema."""
    if isinstance(feature, Numeric):
        assert feature.bins is not None
        return len(feature.bins) + 1 if np.isnan(value) else sum(cut < value for cut in feature.bins)
    homes = [[value] for value in feature.values] if feature.groups is None else list(feature.groups.values())
    return len(homes) if value < 0 else next(i for i, home in enumerate(homes) if feature.values[value] in home)


def bins(feature: Feature) -> list[int]:
    return [bin_of(feature, value) for value in COLUMNS[feature.name].tolist()]


def test_above_reads_a_missing_number_as_not_above() -> None:
    question = Above("age", BIT, AGE, 4.5)
    assert np.isnan(COLUMNS["age"]).any()
    assert question.cells(ROWS).tolist() == [int(value > 4.5) for value in COLUMNS["age"].tolist()]
    assert question.n_cells == question.n_counts == 2
    at_the_point = Rows({"age": np.array([4.5, np.nextafter(4.5, 5)])}, LABELS[:2], ROWS.words[:2])
    assert question.cells(at_the_point).tolist() == [0, 1]


@pytest.mark.parametrize("features", [(AGE,), (JOB,), (AGE, TOWN), (JOB, HEIGHT, AGE)])
def test_a_cell_has_the_first_feature_first_and_the_label_last(features: tuple[Feature, ...]) -> None:
    sizes = [feature.n_bins for feature in features]
    question = Cell("table", table_mechanism(1.0, int(np.prod(sizes)) * 2), features, 2)
    expected = np.ravel_multi_index([*map(bins, features), LABELS.tolist()], (*sizes, 2))
    assert question.cells(ROWS).tolist() == expected.tolist()
    assert question.n_cells == np.prod(sizes) * 2
    assert question.cells(ROWS).max() < question.n_cells


def test_bits_ask_for_the_side_the_agreement_and_the_label() -> None:
    cut_once = Numeric("age", 0, 10, bins=[4])
    for feature in (cut_once, HEIGHT, TOWN):
        side = [int(bin_of(feature, value) == 1) for value in COLUMNS[feature.name].tolist()]
        assert Side("side", BIT, feature).cells(ROWS).tolist() == side
        assert Agree("agree", BIT, feature).cells(ROWS).tolist() == [int(a == b) for a, b in zip(side, LABELS.tolist(), strict=True)]
    assert LabelIs("label", BIT).cells(ROWS).tolist() == LABELS.tolist()
    assert {Side("side", BIT, TOWN).n_cells, Agree("agree", BIT, TOWN).n_cells, LabelIs("label", BIT).n_cells} == {2}


@pytest.mark.parametrize("question", [Above("a", BIT, AGE, 2.0), Cell("t", None, (AGE, JOB), 2), Agree("b", BIT, TOWN), LabelIs("l", BIT)])
def test_some_rows_are_asked_as_all_rows_are(question: Question) -> None:
    some = np.array([7, 3, 150])
    assert question.cells(ROWS.take(some)).tolist() == question.cells(ROWS)[some].tolist()


LEVELS = (np.array([0, 2, 1, 0]), np.array([1, 0]), np.array([0, 1]), np.array([2, 2, 0, 1]))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_block_asks_each_person_about_the_features_of_the_second_word(size: int) -> None:
    features = (AGE, HEIGHT, TOWN, JOB)
    block = Block("levels", response(8.0, 2 * 3**size), features, LEVELS, size)
    asked = combination_of(ROWS.words[:, 1], 4, size).tolist()
    level = [[int(LEVELS[j][b]) for b in bins(feature)] for j, feature in enumerate(features)]
    expected = [
        int(np.ravel_multi_index([*(level[j][i] for j in asked[i]), int(LABELS[i])], (*[3] * size, 2))) for i in range(N)
    ]  # fmt: skip
    assert block.cells(ROWS).tolist() == expected
    some = np.array([199, 0, 42])
    assert block.cells(ROWS.take(some)).tolist() == [expected[i] for i in some]
    assert block.n_cells == 2 * 3**size


@pytest.mark.parametrize("size", [2, 3])
def test_the_counts_of_a_block_are_its_tables_of_one_feature_and_of_two(size: int) -> None:
    block = Block("levels", response(8.0, 2 * 3**size), (AGE, HEIGHT, TOWN, JOB), LEVELS, size)
    reports = block.cells(ROWS)
    singles, pairs = np.zeros((4, 3, 2), int), np.zeros((6, 3, 3), int)
    order = list(combinations(range(4), 2))
    for asked, report in zip(combination_of(ROWS.words[:, 1], 4, size).tolist(), reports.tolist(), strict=True):
        *levels, label = np.unravel_index(report, (*[3] * size, 2))
        for j, level in zip(asked, levels, strict=True):
            singles[j, level, label] += 1
        for (i, a), (j, b) in combinations(list(zip(asked, levels, strict=True)), 2):
            pairs[order.index((i, j)), a, b] += 1
    counts = block.count(reports, ROWS.words)
    assert counts[: block.n_singles].tolist() == singles.ravel().tolist()
    assert counts[block.n_singles :].tolist() == pairs.ravel().tolist()
    assert counts.size == block.n_counts == block.empty().counts.size


def test_blocks_are_counted_one_by_one_as_they_are_all_at_once() -> None:
    block = Block("levels", response(8.0, 2 * 9), (AGE, HEIGHT, TOWN, JOB), LEVELS, 2)
    reports = block.cells(ROWS)
    one_by_one = sum((Tally(1, block.count(reports[i : i + 1], ROWS.words[i : i + 1])) for i in range(N)), block.empty())
    assert (one_by_one.n, one_by_one.counts.tolist()) == (N, block.count(reports, ROWS.words).tolist())


def test_without_a_mechanism_true_cells_are_counted() -> None:
    question = Cell("table", None, (TOWN,), 2)
    assert question.count(question.cells(ROWS), ROWS.words).tolist() == np.bincount(COLUMNS["town"] * 2 + LABELS, minlength=4).tolist()


def test_with_one_the_mechanism_counts() -> None:
    mechanism = table_mechanism(0.5, 16)
    question = Cell("table", mechanism, (JOB,), 4)
    reports = mechanism.report_many(np.zeros(9, np.int64), SeededEntropy(1))
    assert question.count(reports, ROWS.words[:9]).tolist() == mechanism.tally(reports).tolist()


def test_mechanisms_are_made_once() -> None:
    assert response(1.0) is response(1.0)
    assert table_mechanism(1.0, 12) is table_mechanism(1.0, 12)
    assert isinstance(response(1.0, 5), RandomResponse)
    assert table_mechanism(0.5, 64, ("random-response",)).name == "random-response"


def test_rows_do_not_show_themselves() -> None:
    assert repr(ROWS) == "Rows()"
