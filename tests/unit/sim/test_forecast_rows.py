"""Public rows: who is drawn, who tests, and that nobody does both."""

from __future__ import annotations

import numpy as np
import pytest

from forecast_cases import rows_of, small, table_of
from shoal.errors import SpecError
from shoal.sim.forecast_rows import MOST_UNSEEN, N_FOLDS, N_GROUPS, PublicRows, groups_of

STUDY = small("anonml")


def numbered(n: int, seed: int = 0) -> PublicRows:
    """Rows that are told apart by their only column."""
    return PublicRows({"row": np.arange(n)}, np.arange(n) % 2, np.arange(n), seed)


def test_each_row_is_tested_on_in_one_part_and_nobody_tests_what_was_learned_from_it() -> None:
    rows = numbered(400)
    draws = [rows.draw(100, repeat) for repeat in range(N_FOLDS)]
    assert sorted(np.concatenate([one.unseen["row"] for one in draws]).tolist()) == list(range(400))
    for one in draws:
        assert len(set(one.asked["row"].tolist())) == 100 and not set(one.asked["row"].tolist()) & set(one.unseen["row"].tolist())
        assert (one.labels == one.asked["row"] % 2).all() and (one.unseen_labels == one.unseen["row"] % 2).all()


def test_small_populations_are_fresh_rows_and_large_ones_repeat_some() -> None:
    rows = numbered(400)
    assert rows.n_pool == 300 and rows.n_apart(100) == 3
    assert not rows.is_repeated(150) and rows.is_repeated(151)
    assert len(set(rows.draw(150, 0).asked["row"].tolist())) == 150
    large = rows.draw(1000, 0)
    assert len(large.labels) == 1000 and len(set(large.asked["row"].tolist())) > 250
    assert not set(large.asked["row"].tolist()) & set(large.unseen["row"].tolist())


def test_a_part_of_the_rows_is_drawn_from_where_that_is_asked() -> None:
    found = numbered(400).draw(5000, 1, part=0.5).asked["row"]
    assert len(set(found.tolist())) == 150


def test_draws_follow_from_seed_size_and_repeat() -> None:
    rows = numbered(400)

    def drawn(rows: PublicRows, n: int, repeat: int) -> list[int]:
        return rows.draw(n, repeat).asked["row"].tolist()  # type: ignore[no-any-return]

    assert drawn(rows, 50, 3) == drawn(numbered(400), 50, 3)
    assert drawn(rows, 50, 3) != drawn(rows, 50, 7) and drawn(rows, 50, 3) != drawn(numbered(400, seed=1), 50, 3)
    assert rows.draw(50, 3).unseen["row"].tolist() == rows.draw(50, 7).unseen["row"].tolist()


def test_a_large_table_is_tested_on_a_random_part_of_each_quarter() -> None:
    n = 8 * MOST_UNSEEN
    unseen = numbered(n).draw(10, 0).unseen["row"]
    assert len(unseen) == MOST_UNSEEN and abs(unseen.mean() / n - 0.5) < 0.02


def test_the_rows_of_a_person_stay_together() -> None:
    study = small("sdq")
    table = table_of(study, 600)
    table["patient"] = np.array([f"p{i // 3}" for i in range(600)], object)
    rows = PublicRows.of(study, table, 0)
    assert rows.n_units == 200 and rows.has_people
    drawn = rows.draw(120, 0)
    assert drawn.people is not None and len(drawn.labels) == 120 == len(drawn.people)
    assert np.bincount(drawn.people).tolist() == [3] * 40
    again = rows.draw(3000, 0)
    assert again.people is not None and np.bincount(again.people).tolist() == [3] * 1000  # drawn twice, two people
    ages = {person: set(again.asked["age"][again.people == person].tolist()) for person in range(5)}
    real = [{float(one) for one in table["age"][3 * i : 3 * i + 3]} for i in range(200)]
    assert all(found in real for found in ages.values())


def test_rows_that_are_too_few_or_too_much_alike_are_refused() -> None:
    table = table_of(STUDY, 200)
    for few in ({name: column[:6] for name, column in table.items()}, {**table, "passed": np.array(["yes"] * 200, object)}):
        with pytest.raises(SpecError) as error:
            PublicRows.of(STUDY, few, 0)
        assert error.value.code == "SIM-003" and "public row" in error.value.what
    with pytest.raises(SpecError) as error:
        PublicRows.of(STUDY, {name: column[:0] for name, column in table.items()}, 0)
    assert error.value.code == "SIM-003"
    lonely = np.array(["yes"] * 199 + ["no"], object)
    with pytest.raises(SpecError, match="SIM-003"):
        PublicRows.of(STUDY, {**table, "passed": lonely}, 0)


def test_groups_are_rows_that_follow_each_other() -> None:
    assert groups_of(12).tolist() == [i // 2 for i in range(12)] and groups_of(0).size == 0
    assert set(groups_of(1000).tolist()) == set(range(N_GROUPS))
    assert rows_of(STUDY).n_units == 800 and not rows_of(STUDY).has_people
