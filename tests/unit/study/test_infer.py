"""A study from a table: what is copied, what is left out, and that no error repeats a cell."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from shoal.domain import as_columns
from shoal.errors import SpecError
from shoal.study.infer import WARNING, study_like
from shoal.study.load import parse
from shoal.study.spec import Study
from shoal.study.templates import PROTOCOLS

LABEL = ["no", "yes"] * 100


def drafted(protocol: str = "anonml", label: Iterable[object] = LABEL, **columns: Iterable[object]) -> tuple[Study, list[str]]:
    text, warnings = study_like(as_columns({**columns, "ill": label}), protocol)
    return parse(text), warnings


def refused(columns: dict[str, Any], protocol: str = "anonml") -> SpecError:
    with pytest.raises(SpecError) as error:
        study_like(as_columns(columns), protocol)
    assert error.value.fix and "study.toml" not in str(error.value)
    return error.value


NUMBERS = [i % 7 for i in range(200)]


@pytest.mark.parametrize(
    "cells",
    [
        [f"Mr {i}" for i in range(200)],
        [f"Mr {i % 101}" for i in range(200)],
        [f"{i}_{i}" for i in range(200)],
        [*(i * 3.7 for i in range(199)), "inf"],
    ],
    ids=["names", "many values", "numbers with underscores", "one infinity"],
)
def test_what_looks_like_rows_of_their_own_is_left_out(cells: list[object]) -> None:
    study, warnings = drafted(secret=cells, age=NUMBERS)
    assert study.schema().names == ("age",)
    assert warnings == [WARNING, "Left out, because they look like names or identifiers: secret."]


def test_a_short_list_of_names_is_left_out_too() -> None:
    study, warnings = drafted(label=["no", "yes"] * 10, who=[f"Mr {i % 11}" for i in range(20)], kind=["u", "v"] * 10)
    assert study.schema().names == ("kind",) and "Mr" not in str(study) and "identifiers: who." in warnings[1]


@pytest.mark.parametrize("bad", ["SECRET\nDIAG", "SECRET" * 40, "SECRET\u202e", b"SECRET"])
def test_texts_that_cannot_stand_in_a_study_are_left_out(bad: object) -> None:
    study, warnings = drafted(code=[bad, "u"] * 100, age=NUMBERS)
    assert study.schema().names == ("age",)
    assert "not a plain line of at most 200 characters: code." in warnings[1] and "SECRET" not in "".join(warnings)
    error = refused({"age": NUMBERS, "ill": [bad, "u"] * 100})
    assert "SECRET" not in str(error) and "row 1" in error.what


def test_a_column_without_a_value_is_left_out() -> None:
    study, warnings = drafted(none=[None] * 200, age=NUMBERS)
    assert study.schema().names == ("age",) and "no value at all: none." in warnings[1]


def test_spaces_around_cells_do_not_count() -> None:
    study, _ = drafted(kind=[" u", "v "] * 100)
    assert study.feature[0].values == ("u", "v")


def test_numbers_that_identify_rows_are_named() -> None:
    study, warnings = drafted(id=range(200), share=[i / 7 for i in range(200)], age=NUMBERS)
    assert study.schema().names == ("id", "share", "age")
    assert warnings == [WARNING, "Kept, though most rows have a number of their own, as identifiers do: id."]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_words_of_another_study_are_kept(protocol: str) -> None:
    text, _ = study_like(as_columns({"age": NUMBERS, "ill": LABEL}), protocol)
    study = parse(text)
    assert study.title == "(write a title)" and study.contact == "(write whom to ask)" and "(write what" in study.purpose
    assert not any(word in text.lower() for word in ("patient", "claim", "course", "ever spends", "example.org"))
    assert study.privacy.unit == ("person" if protocol == "anonml" else "update" if protocol == "ddml" else "record")


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"ill": LABEL}, "a single column"),
        ({"a": [], "ill": []}, "no rows"),
        ({f"f{i}": [1] for i in range(9_002)}, "9,002 columns; a study has at most 2,000"),
        ({"39": [1, 2] * 9, "SECRET": ["u", "v"] * 9, "ill": ["y", "n"] * 9}, "Column 1 has a name that looks like a cell"),
        ({"a": [1, 2] * 9, "SECRET": ["SECRET", "v"] * 9, "u": ["u", "w"] * 9, "ill": ["y", "n"] * 9}, "Column 2 has a name that looks"),
        ({"a": [1, 2] * 9, "SECRET\n": ["u", "v"] * 9, "ill": ["y", "n"] * 9}, "Column 2 has a name that no feature can have"),
        ({"a": NUMBERS, "SECRET": [f"SECRET {i}" for i in range(200)]}, "has 200 different values in 200 rows"),
        ({"a": [1, 2, 3], "ill": ["SECRET", "u", "u"]}, "has 2 different values in 3 rows"),
        ({"a": NUMBERS, "ill": [*LABEL[:199], None]}, "row 200 has a value that is missing"),
        ({"a": NUMBERS, "ill": [*LABEL[:199], " "]}, "row 200 has a value that is missing"),
        ({"a": [1.7e308, -1.7e308] * 100, "ill": LABEL}, "too far apart"),
        ({f"f{i}": [f"{'v' * 190} {j % 100}" for j in range(200)] for i in range(60)} | {"ill": LABEL}, "bytes; at most 1,000,000"),
    ],
)
def test_what_makes_no_study_is_refused_without_a_cell(columns: dict[str, Any], what: str) -> None:
    error = refused(columns)
    assert what in str(error) and "SECRET" not in str(error) and "1.7" not in str(error)


def test_one_name_may_be_a_value_of_its_column() -> None:
    assert drafted(spam=["spam", "ham"] * 100)[0].feature[0].values == ("ham", "spam")


@pytest.mark.parametrize("protocol", ["ddml", "pfds"])
def test_a_numeric_label_is_always_known(protocol: str) -> None:
    prices = np.arange(200) * 1.5
    assert drafted(protocol, prices, age=NUMBERS)[0].label.range == (0.0, 298.5)
    for gap in (None, "nan"):
        error = refused({"age": NUMBERS, "price": [*map(str, prices[:-1]), gap]}, protocol)
        assert error.code == "DATA-005" and "row 200" in error.what
    assert refused({"age": NUMBERS, "price": [5] * 200}, protocol).code == "DATA-007"
