"""Each question against a plain reading of single rows."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from shoal.data.schema import Feature, Numeric
from shoal.entropy import SeededEntropy
from shoal.mechanisms.randomized_response import RandomizedResponse
from shoal.protocols.anonml.assignment import draw_words, unrank_combinations
from shoal.protocols.anonml.questions import (
    AboveQuestion,
    AgreementQuestion,
    AssignedRows,
    BlockQuestion,
    CellQuestion,
    LabelQuestion,
    Question,
    SideQuestion,
    Tally,
    choose_table_mechanism,
    make_response,
)
from tests.support.anonml import FEATURES, TWO, people

N = 200
COLUMNS, LABELS = people(TWO, N)
ROWS = AssignedRows(COLUMNS, LABELS, draw_words(N, SeededEntropy(1)))
AGE, HEIGHT, TOWN, JOB = Numeric("age", 0, 10, bins=[3, 6]), *FEATURES[1:]
BIT = make_response(1.0)


def bin_of(feature: Feature, value: Any) -> int:
    """The bin of one encoded value, by the words of the schema."""
    if isinstance(feature, Numeric):
        assert feature.bins is not None
        return (
            len(feature.bins) + 1 if np.isnan(value) else sum(cut < value for cut in feature.bins)
        )
    homes = (
        [[value] for value in feature.values]
        if feature.groups is None
        else list(feature.groups.values())
    )
    return (
        len(homes)
        if value < 0
        else next(i for i, home in enumerate(homes) if feature.values[value] in home)
    )


def bins(feature: Feature) -> list[int]:
    return [bin_of(feature, value) for value in COLUMNS[feature.name].tolist()]


def test_above_question_counts_missing_as_not_above() -> None:
    question = AboveQuestion("age", BIT, AGE, 4.5)
    assert np.isnan(COLUMNS["age"]).any()
    assert question.find_cells(ROWS).tolist() == [
        int(value > 4.5) for value in COLUMNS["age"].tolist()
    ]
    assert question.n_cells == question.n_counts == 2
    at_the_point = AssignedRows(
        {"age": np.array([4.5, np.nextafter(4.5, 5)])}, LABELS[:2], ROWS.words[:2]
    )
    assert question.find_cells(at_the_point).tolist() == [0, 1]


@pytest.mark.parametrize("features", [(AGE,), (JOB,), (AGE, TOWN), (JOB, HEIGHT, AGE)])
def test_cell_question_orders_first_feature_first_and_label_last(
    features: tuple[Feature, ...],
) -> None:
    sizes = [feature.n_bins for feature in features]
    question = CellQuestion(
        "table", choose_table_mechanism(1.0, int(np.prod(sizes)) * 2), features, 2
    )
    expected = np.ravel_multi_index([*map(bins, features), LABELS.tolist()], (*sizes, 2))
    assert question.find_cells(ROWS).tolist() == expected.tolist()
    assert question.n_cells == np.prod(sizes) * 2
    assert question.find_cells(ROWS).max() < question.n_cells


def test_bit_questions_return_side_agreement_and_label() -> None:
    cut_once = Numeric("age", 0, 10, bins=[4])
    for feature in (cut_once, HEIGHT, TOWN):
        side = [int(bin_of(feature, value) == 1) for value in COLUMNS[feature.name].tolist()]
        assert SideQuestion("side", BIT, feature).find_cells(ROWS).tolist() == side
        assert AgreementQuestion("agree", BIT, feature).find_cells(ROWS).tolist() == [
            int(a == b) for a, b in zip(side, LABELS.tolist(), strict=True)
        ]
    assert LabelQuestion("label", BIT).find_cells(ROWS).tolist() == LABELS.tolist()
    assert {
        SideQuestion("side", BIT, TOWN).n_cells,
        AgreementQuestion("agree", BIT, TOWN).n_cells,
        LabelQuestion("label", BIT).n_cells,
    } == {2}


@pytest.mark.parametrize(
    "question",
    [
        AboveQuestion("a", BIT, AGE, 2.0),
        CellQuestion("t", None, (AGE, JOB), 2),
        AgreementQuestion("b", BIT, TOWN),
        LabelQuestion("l", BIT),
    ],
)
def test_questions_on_some_rows_equal_those_on_all(question: Question) -> None:
    some = np.array([7, 3, 150])
    assert question.find_cells(ROWS.take(some)).tolist() == question.find_cells(ROWS)[some].tolist()


LEVELS = (np.array([0, 2, 1, 0]), np.array([1, 0]), np.array([0, 1]), np.array([2, 2, 0, 1]))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_block_question_uses_features_of_second_word(size: int) -> None:
    features = (AGE, HEIGHT, TOWN, JOB)
    block = BlockQuestion("levels", make_response(8.0, 2 * 3**size), features, LEVELS, size)
    asked = unrank_combinations(ROWS.words[:, 1], 4, size).tolist()
    level = [[int(LEVELS[j][b]) for b in bins(feature)] for j, feature in enumerate(features)]
    expected = [
        int(
            np.ravel_multi_index(
                [*(level[j][i] for j in asked[i]), int(LABELS[i])], (*[3] * size, 2)
            )
        )
        for i in range(N)
    ]
    assert block.find_cells(ROWS).tolist() == expected
    some = np.array([199, 0, 42])
    assert block.find_cells(ROWS.take(some)).tolist() == [expected[i] for i in some]
    assert block.n_cells == 2 * 3**size


@pytest.mark.parametrize("size", [2, 3])
def test_block_counts_are_tables_of_one_and_two_features(size: int) -> None:
    block = BlockQuestion(
        "levels", make_response(8.0, 2 * 3**size), (AGE, HEIGHT, TOWN, JOB), LEVELS, size
    )
    reports = block.find_cells(ROWS)
    singles, pairs = np.zeros((4, 3, 2), int), np.zeros((6, 3, 3), int)
    order = list(combinations(range(4), 2))
    for asked, report in zip(
        unrank_combinations(ROWS.words[:, 1], 4, size).tolist(), reports.tolist(), strict=True
    ):
        *levels, label = np.unravel_index(report, (*[3] * size, 2))
        for j, level in zip(asked, levels, strict=True):
            singles[j, level, label] += 1
        for (i, a), (j, b) in combinations(list(zip(asked, levels, strict=True)), 2):
            pairs[order.index((i, j)), a, b] += 1
    counts = block.count(reports, ROWS.words)
    assert counts[: block.n_singles].tolist() == singles.ravel().tolist()
    assert counts[block.n_singles :].tolist() == pairs.ravel().tolist()
    assert counts.size == block.n_counts == block.make_empty_tally().counts.size


def test_block_counts_of_single_people_sum_to_total() -> None:
    block = BlockQuestion("levels", make_response(8.0, 2 * 9), (AGE, HEIGHT, TOWN, JOB), LEVELS, 2)
    reports = block.find_cells(ROWS)
    one_by_one = sum(
        (Tally(1, block.count(reports[i : i + 1], ROWS.words[i : i + 1])) for i in range(N)),
        block.make_empty_tally(),
    )
    assert (one_by_one.n, one_by_one.counts.tolist()) == (
        N,
        block.count(reports, ROWS.words).tolist(),
    )


def test_count_without_mechanism_counts_true_cells() -> None:
    question = CellQuestion("table", None, (TOWN,), 2)
    assert (
        question.count(question.find_cells(ROWS), ROWS.words).tolist()
        == np.bincount(COLUMNS["town"] * 2 + LABELS, minlength=4).tolist()
    )


def test_count_with_mechanism_uses_its_tally() -> None:
    mechanism = choose_table_mechanism(0.5, 16)
    question = CellQuestion("table", mechanism, (JOB,), 4)
    reports = mechanism.report_many(np.zeros(9, np.int64), SeededEntropy(1))
    assert question.count(reports, ROWS.words[:9]).tolist() == mechanism.tally(reports).tolist()


def test_mechanisms_are_cached() -> None:
    assert make_response(1.0) is make_response(1.0)
    assert choose_table_mechanism(1.0, 12) is choose_table_mechanism(1.0, 12)
    assert isinstance(make_response(1.0, 5), RandomizedResponse)
    assert choose_table_mechanism(0.5, 64, ("random-response",)).name == "random-response"


def test_assigned_rows_repr_hides_values() -> None:
    assert repr(ROWS) == "AssignedRows()"
