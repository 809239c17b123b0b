"""Public tables: read strictly, and rows that are drawn from them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from shoal.errors import SpecError
from shoal.simulation.forecast.sources import N_TEST_ROWS, load_tables
from tests.support.simulation import edited, small

STUDY = small("anonml")
TABLES = """
[[table]]
label = "passed"
shares = { no = 0.25, yes = 0.75 }

[[table]]
feature = "country"
shares.no = { north = 0.5, centre = 0.3, other = 0.1, missing = 0.1 }
shares.yes = { north = 0.0, centre = 0.3, other = 0.7, missing = 0.0 }

[[table]]
feature = "hours_watched"
cuts = [50]
shares.no = [1, 0]
shares.yes = [0.2, 0.8]

[[table]]
feature = "homework_mean"
shares.no = [100, 50, 25, 15, 10]
shares.yes = [0.1, 0.2, 0.3, 0.395, 0.0]

[[table]]
feature = "forum_posts"
shares.no = [0.25, 0.25, 0.25, 0.25]
shares.yes = [0.25, 0.25, 0.25, 0.25]
"""


def loaded(home: Path, *edits: tuple[str, str]) -> object:
    (home / "tables.toml").write_text(edited(TABLES, *edits))
    return load_tables(home / "tables.toml", STUDY, 3)


def test_drawn_rows_have_the_shares_of_the_tables(tmp_path: Path) -> None:
    loaded(tmp_path)
    source = load_tables(tmp_path / "tables.toml", STUDY, 3)
    split = source.draw(40_000, 0)
    assert split.train_labels.mean() == pytest.approx(0.75, abs=0.01)
    no, yes = split.train_labels == 0, split.train_labels == 1
    country, hours, homework = (
        split.train_columns[name] for name in ("country", "hours_watched", "homework_mean")
    )
    values = STUDY.schema()["country"].values  # type: ignore[union-attr]
    assert (country[no] == values.index("NO")).mean() == pytest.approx(0.5, abs=0.02) and (
        country[no] == -1
    ).mean() == pytest.approx(0.1, abs=0.02)
    # A group's values are all alike.
    assert (
        (country[yes] == values.index("DE")).mean()
        == pytest.approx(0.1, abs=0.01)
        == pytest.approx(0.1, abs=0.01)
    )
    assert not (country[yes] == values.index("NO")).any()
    assert (
        hours[no].max() <= 50
        and (hours[yes] > 50).mean() == pytest.approx(0.8, abs=0.02)
        and hours.max() <= 200
        and hours.min() >= 0
    )
    assert (
        np.isnan(homework[no]).mean() == pytest.approx(0.05, abs=0.01)
        and not np.isnan(homework[yes]).any()
    )
    assert (homework[no] <= 40).mean() == pytest.approx(0.5, abs=0.02)
    # Features are independent given the label.
    assert np.corrcoef(hours[yes], split.train_columns["forum_posts"][yes])[0, 1] == pytest.approx(
        0.0, abs=0.03
    )


def test_tables_draw_without_end_and_always_the_same_test_rows(tmp_path: Path) -> None:
    loaded(tmp_path)
    source = load_tables(tmp_path / "tables.toml", STUDY, 3)
    assert (
        source.count_populations(10**9) == math.inf
        and not source.is_repeated(10**9)
        and source.n_folds == 1
    )
    first, second, again = source.draw(50, 0), source.draw(50, 1), source.draw(50, 0)
    assert (
        first.test_columns["hours_watched"] == second.test_columns["hours_watched"]
    ).all() and len(first.test_labels) == N_TEST_ROWS
    assert (first.train_columns["hours_watched"] == again.train_columns["hours_watched"]).all()
    assert not (first.train_columns["hours_watched"] == second.train_columns["hours_watched"]).all()


def test_shares_may_be_given_for_each_value(tmp_path: Path) -> None:
    each = "{ DE = 0.2, FR = 0.2, NO = 0.2, PL = 0.2, other = 0.2 }"
    old = (
        "{ north = 0.5, centre = 0.3, other = 0.1, missing = 0.1 }",
        "{ north = 0.0, centre = 0.3, other = 0.7, missing = 0.0 }",
    )
    loaded(tmp_path, *((one, each) for one in old))
    codes = load_tables(tmp_path / "tables.toml", STUDY, 3).draw(1000, 0).train_columns["country"]
    assert set(codes.tolist()) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("no = 0.25, yes = 0.75", "no = 0.25, yes = 0.5", "add up to 0.75, not to 1"),
        ("no = 0.25, yes = 0.75", "no = 0, yes = 0", "add up to 0, not to 1"),
        ("no = 0.25, yes = 0.75", "no = true, yes = 0.75", "not a number of 0 or more"),
        ("no = 0.25, yes = 0.75", "no = -1, yes = 2", "not a number of 0 or more"),
        ("no = 0.25, yes = 0.75", "no = nan, yes = 0.75", "not a number of 0 or more"),
        ("no = 0.25, yes = 0.75", "maybe = 0.25, yes = 0.75", "do not name no, yes once each"),
        ('label = "passed"', 'label = "failed"', "Table 1 does not name the label or a feature"),
        (
            'feature = "forum_posts"',
            'feature = "hours_watched"',
            "Table 5 does not name the label or a feature, or repeats one",
        ),
        ('feature = "country"', 'feature = "continent"', "Table 2 does not name the label"),
        ("cuts = [50]", "cut = [50]", "Table 3 does not name the label"),
        ("cuts = [50]", "cuts = [500]", "do not cut the range"),
        (
            "cuts = [50]",
            "cuts = [50, 60]",
            "hours_watched has 3 cells: give a list of 3 shares for each class.",
        ),
        (
            "shares.no = [100, 50, 25, 15, 10]",
            "shares.no = [1, 1]",
            "homework_mean has 4 cells: give a list of 4 shares for each class, or 5",
        ),
        ("shares.no = [1, 0]", "shares.no = { a = 1 }", "hours_watched has 2 cells"),
        (
            "shares.no = { north = 0.5, centre = 0.3, other = 0.1, missing = 0.1 }",
            "cuts = [1]\nshares.no = { north = 1 }",
            "country is a category",
        ),
        (
            "shares.no = { north = 0.5, centre = 0.3, other = 0.1, missing = 0.1 }",
            "shares.no = [1]",
            "country is a category",
        ),
        (
            "missing = 0.1",
            "elsewhere = 0.1",
            "do not name missing, DE, FR, NO, PL, other once each",
        ),
        (
            '[[table]]\nlabel = "passed"\nshares = { no = 0.25, yes = 0.75 }',
            "",
            "The table of passed is missing.",
        ),
        ("[[table]]", "[[tables]]", "A file of public tables has no tables"),
    ],
)
def test_load_tables_rejects_invalid_files(old: str, new: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as error:
        loaded(tmp_path, (old, new))
    assert (
        error.value.code == "FORECAST-001"
        and what in error.value.what
        and "tables.toml" in error.value.what
    )


def test_load_tables_requires_a_table_for_each_feature(tmp_path: Path) -> None:
    (tmp_path / "tables.toml").write_text(
        '[[table]]\nlabel = "passed"\nshares = { no = 1, yes = 1 }\n'
    )
    with pytest.raises(
        SpecError, match="The table of hours_watched, homework_mean, forum_posts, country"
    ):
        load_tables(tmp_path / "tables.toml", STUDY, 0)
    wide = small(
        "anonml",
        (
            "[privacy]",
            "".join(f'[[feature]]\nname = "f{i}"\nvalues = ["a", "b"]\n' for i in range(9))
            + "[privacy]",
        ),
    )
    with pytest.raises(SpecError, match="f3 and others"):
        load_tables(tmp_path / "tables.toml", wide, 0)


def test_number_without_bins_is_one_cell(tmp_path: Path) -> None:
    loaded(tmp_path)
    text = (
        (tmp_path / "tables.toml")
        .read_text()
        .replace("shares.no = [0.25, 0.25, 0.25, 0.25]", "shares.no = [1]")
    )
    (tmp_path / "tables.toml").write_text(
        text.replace("shares.yes = [0.25, 0.25, 0.25, 0.25]", "shares.yes = [1]")
    )
    posts = (
        load_tables(tmp_path / "tables.toml", small("anonml", ("bins = [0, 2, 10]\n", "")), 0)
        .draw(2000, 0)
        .train_columns["forum_posts"]
    )
    assert posts.mean() == pytest.approx(250, abs=20)


@pytest.mark.parametrize("what", ["predicts a number", "has texts"])
def test_load_tables_rejects_numeric_labels_and_texts(what: str, tmp_path: Path) -> None:
    study = (
        small(
            "pfds",
            ('name = "doubtful"\nvalues = ["no", "yes"]', 'name = "doubtful"\nrange = [0, 1]'),
        )
        if "number" in what
        else small("ddml", ("[privacy]", '[[feature]]\nname = "words"\nbuckets = 10\n[privacy]'))
    )
    with pytest.raises(SpecError) as error:
        load_tables(tmp_path / "tables.toml", study, 0)
    assert error.value.code == "FORECAST-001" and what in error.value.what
