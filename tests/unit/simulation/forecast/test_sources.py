"""Public rows: the population and the test rows have no row in common."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.errors import SpecError
from shoal.simulation.forecast.sources import (
    MAX_TEST_ROWS,
    N_FOLDS,
    N_GROUPS,
    PublicRows,
    assign_groups,
)
from tests.support.simulation import make_rows, make_table, small

STUDY = small("anonml")


def numbered(n: int, seed: int = 0) -> PublicRows:
    """Return rows that are distinguished by their only column."""
    return PublicRows({"row": np.arange(n)}, np.arange(n) % 2, np.arange(n), seed)


def test_public_rows_test_each_row_in_one_fold_and_never_train_on_it() -> None:
    rows = numbered(400)
    draws = [rows.draw(100, repeat) for repeat in range(N_FOLDS)]
    assert sorted(np.concatenate([one.test_columns["row"] for one in draws]).tolist()) == list(
        range(400)
    )
    for one in draws:
        assert len(set(one.train_columns["row"].tolist())) == 100 and not set(
            one.train_columns["row"].tolist()
        ) & set(one.test_columns["row"].tolist())
        assert (one.train_labels == one.train_columns["row"] % 2).all() and (
            one.test_labels == one.test_columns["row"] % 2
        ).all()


def test_small_populations_are_fresh_and_large_ones_repeat_rows() -> None:
    rows = numbered(400)
    assert rows.n_pool == 300 and rows.count_populations(100) == 3
    assert not rows.is_repeated(150) and rows.is_repeated(151)
    assert len(set(rows.draw(150, 0).train_columns["row"].tolist())) == 150
    large = rows.draw(1000, 0)
    assert len(large.train_labels) == 1000 and len(set(large.train_columns["row"].tolist())) > 250
    assert not set(large.train_columns["row"].tolist()) & set(large.test_columns["row"].tolist())


def test_draw_uses_a_part_of_the_rows_if_asked() -> None:
    found = numbered(400).draw(5000, 1, part=0.5).train_columns["row"]
    assert len(set(found.tolist())) == 150


def test_draw_depends_on_seed_size_and_repeat() -> None:
    rows = numbered(400)

    def drawn(rows: PublicRows, n: int, repeat: int) -> list[int]:
        return rows.draw(n, repeat).train_columns["row"].tolist()  # type: ignore[no-any-return]

    assert drawn(rows, 50, 3) == drawn(numbered(400), 50, 3)
    assert drawn(rows, 50, 3) != drawn(rows, 50, 7) and drawn(rows, 50, 3) != drawn(
        numbered(400, seed=1), 50, 3
    )
    assert (
        rows.draw(50, 3).test_columns["row"].tolist()
        == rows.draw(50, 7).test_columns["row"].tolist()
    )


def test_large_table_is_tested_on_a_random_part_of_each_fold() -> None:
    n = 8 * MAX_TEST_ROWS
    unseen = numbered(n).draw(10, 0).test_columns["row"]
    assert len(unseen) == MAX_TEST_ROWS and abs(unseen.mean() / n - 0.5) < 0.02


def test_rows_of_a_person_stay_together() -> None:
    study = small("sdq")
    table = make_table(study, 600)
    table["patient"] = np.array([f"p{i // 3}" for i in range(600)], object)
    rows = PublicRows.from_table(study, table, 0)
    assert rows.n_units == 200 and rows.has_people
    drawn = rows.draw(120, 0)
    assert drawn.people is not None and len(drawn.train_labels) == 120 == len(drawn.people)
    assert np.bincount(drawn.people).tolist() == [3] * 40
    again = rows.draw(3000, 0)
    assert (
        again.people is not None and np.bincount(again.people).tolist() == [3] * 1000
    )  # drawn twice, two people
    ages = {
        person: set(again.train_columns["age"][again.people == person].tolist())
        for person in range(5)
    }
    real = [{float(one) for one in table["age"][3 * i : 3 * i + 3]} for i in range(200)]
    assert all(found in real for found in ages.values())


def test_public_rows_reject_too_few_rows_or_labels() -> None:
    table = make_table(STUDY, 200)
    for few in (
        {name: column[:6] for name, column in table.items()},
        {**table, "passed": np.array(["yes"] * 200, object)},
    ):
        with pytest.raises(SpecError) as error:
            PublicRows.from_table(STUDY, few, 0)
        assert error.value.code == "SIM-003" and "public row" in error.value.what
    with pytest.raises(SpecError) as error:
        PublicRows.from_table(STUDY, {name: column[:0] for name, column in table.items()}, 0)
    assert error.value.code == "SIM-003"
    lonely = np.array(["yes"] * 199 + ["no"], object)
    with pytest.raises(SpecError, match="SIM-003"):
        PublicRows.from_table(STUDY, {**table, "passed": lonely}, 0)


def test_groups_are_consecutive_rows() -> None:
    assert assign_groups(12).tolist() == [i // 2 for i in range(12)] and assign_groups(0).size == 0
    assert set(assign_groups(1000).tolist()) == set(range(N_GROUPS))
    assert make_rows(STUDY).n_units == 800 and not make_rows(STUDY).has_people
