"""A study inferred from a table: kept and omitted columns, and errors without cells."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from shoal.data.schema import as_columns
from shoal.errors import SpecError
from shoal.study.loader import parse_study_text
from shoal.study.plan import make_plan
from shoal.study.spec import Study
from shoal.study.starters import STARTER_PROTOCOLS
from shoal.study.starters.infer import WARNING, infer_study

LABEL = ["no", "yes"] * 100


def draft_study(
    protocol: str = "anonml", label: Iterable[object] = LABEL, **columns: Iterable[object]
) -> tuple[Study, list[str]]:
    text, warnings = infer_study(as_columns({**columns, "ill": label}), protocol)
    return parse_study_text(text), warnings


def infer_invalid(columns: dict[str, Any], protocol: str = "anonml") -> SpecError:
    with pytest.raises(SpecError) as error:
        infer_study(as_columns(columns), protocol)
    assert error.value.fix and "study.toml" not in str(error.value)
    return error.value


NUMBERS = [i % 7 for i in range(200)]


@pytest.mark.parametrize(
    "cells",
    [
        [f"Mr {i}" for i in range(200)],
        [f"Mr {i % 101}" for i in range(200)],
        [f"{i}_{i}" for i in range(200)],
    ],
    ids=["names", "many values", "numbers with underscores"],
)
def test_infer_leaves_out_identifier_texts(cells: list[object]) -> None:
    study, warnings = draft_study(secret=cells, age=NUMBERS)
    assert study.schema().names == ("age",)
    assert warnings == [WARNING, "Left out, because they look like names or identifiers: secret."]


def test_infer_leaves_out_names_in_a_short_table() -> None:
    study, warnings = draft_study(
        label=["no", "yes"] * 10, who=[f"Mr {i % 11}" for i in range(20)], kind=["u", "v"] * 10
    )
    assert (
        study.schema().names == ("kind",)
        and "Mr" not in str(study)
        and "identifiers: who." in warnings[2]
    )


@pytest.mark.parametrize("bad", ["SECRET\nDIAG", "SECRET" * 40, "SECRET\u202e", b"SECRET"])
def test_infer_leaves_out_texts_that_a_study_cannot_contain(bad: object) -> None:
    study, warnings = draft_study(code=[bad, "u"] * 100, age=NUMBERS)
    assert study.schema().names == ("age",)
    assert "not a plain line of at most 200 characters: code." in warnings[
        1
    ] and "SECRET" not in "".join(warnings)
    error = infer_invalid({"age": NUMBERS, "ill": [bad, "u"] * 100})
    assert "SECRET" not in str(error) and "row 1" in error.what


def test_infer_leaves_out_empty_columns() -> None:
    study, warnings = draft_study(none=[None] * 200, age=NUMBERS)
    assert study.schema().names == ("age",) and "no values: none." in warnings[1]


def test_infer_strips_spaces_around_cells() -> None:
    study, _ = draft_study(kind=[" u", "v "] * 100)
    assert study.feature[0].values == ("u", "v")


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("row", range(1, 201)),
        ("nr", range(7, 207)),
        ("amount", [7 * i * i for i in range(200)]),
        ("customerId", [i * 31 % 150 for i in range(200)]),
        ("id_student", [i * 31 % 150 for i in range(200)]),
    ],
    ids=[
        "row numbers",
        "from elsewhere on",
        "all different",
        "named so, in one word",
        "named so, in two",
    ],
)
def test_infer_leaves_out_identifier_numbers(name: str, cells: Iterable[object]) -> None:
    text, warnings = infer_study(as_columns({name: cells, "age": NUMBERS, "ill": LABEL}), "anonml")
    study = parse_study_text(text)
    assert study.schema().names == ("age",)
    assert warnings == [
        WARNING,
        f"Left out, because most rows have a different number, as in identifiers: {name}.",
    ]


def test_infer_names_numbers_that_may_be_identifiers() -> None:
    study, warnings = draft_study(
        amount=[i * 31 % 150 for i in range(200)], share=[i / 7 for i in range(200)], age=NUMBERS
    )
    assert study.schema().names == ("amount", "share", "age")
    assert warnings == [
        WARNING,
        "Kept, although most rows have a different number, as in identifiers: amount.",
    ]


def test_infer_keeps_distinct_numbers_in_a_short_table() -> None:
    study, warnings = draft_study(
        label=["no", "yes"] * 10, age=[i * 37 % 61 for i in range(20)], row=range(20)
    )
    assert study.schema().names == ("age",)
    assert (
        warnings[0] == WARNING
        and "20 rows" in warnings[1]
        and warnings[2].endswith("as in identifiers: row.")
        and len(warnings) == 3
    )


@pytest.mark.parametrize(
    ("why", "cells"),
    [
        ("every row has the same value", ["NO"] * 200),
        ("every row has the same value", [7] * 200),
        (
            "they are dates or times",
            [f"2024-{i % 12 + 1:02d}-{i % 28 + 1:02d}" for i in range(200)],
        ),
        (
            "they are dates or times",
            [f"{i % 28 + 1}.{i % 12 + 1}.2024 10:00" for i in range(199)] + [""],
        ),
        ("they are dates or times", [f"2024-03-01T{i % 24:02d}:00:00Z" for i in range(200)]),
        ("they are dates or times", [f"{i % 24}:{i % 60:02d}" for i in range(200)]),
        ("they are free text", [f"she said that it was {i} times" for i in range(200)]),
        (
            "their numbers have a decimal comma (write 3.5 for 3,5)",
            [f"{i % 9},5" if i % 3 else f"{i % 9}" for i in range(200)],
        ),
        (
            "they mix numbers with other text",
            [*(i * 3.7 for i in range(199)), "inf"],
        ),
        (
            "they mix numbers with other text",
            [*(i % 40 for i in range(190)), *["?"] * 10],
        ),
    ],
)
def test_infer_gives_reason_for_each_column_left_out(why: str, cells: list[object]) -> None:
    text, warnings = infer_study(as_columns({"odd": cells, "age": NUMBERS, "ill": LABEL}), "anonml")
    assert parse_study_text(text).schema().names == ("age",)
    assert (
        len(warnings) == 2
        and warnings[1].startswith(f"Left out, because {why}")
        and warnings[1].endswith(": odd.")
    )
    assert f"# READ FROM THE DATA: left out, because {why}" in text and '"odd"' in text


@pytest.mark.parametrize(
    "cells",
    [
        [1, 2, "?"] * 66 + [1, 2],
        ["1.5.0", "1.6.0"] * 100,
        ["NO", None] * 100,
        [5, None] * 100,
        ["3,5 kg", "4,5 kg"] * 100,
    ],
)
def test_infer_treats_few_values_as_a_category(cells: list[object]) -> None:
    study, warnings = draft_study(kind=cells)
    assert study.schema().names == ("kind",) and warnings == [WARNING]


def test_infer_accepts_label_in_any_column() -> None:
    text, _ = infer_study(
        as_columns({"ill": LABEL, "age": NUMBERS, "kind": ["u", "v"] * 100}), "anonml", " ill "
    )
    study = parse_study_text(text)
    assert (
        study.label.name == "ill"
        and study.schema().names == ("age", "kind")
        and study.title == "Predict ill"
    )
    with pytest.raises(SpecError) as error:
        infer_study(as_columns({"SECRET": LABEL, "age": NUMBERS}), "anonml", "nothing")
    assert (
        error.value.code == "DATA-001"
        and "nothing" in error.value.what
        and "SECRET" not in str(error.value)
    )


@pytest.mark.parametrize(("n", "size"), [(8, 8), (99, 99), (12_345, 12_000)])
@pytest.mark.parametrize("protocol", STARTER_PROTOCOLS)
def test_infer_scales_participation_with_rows(protocol: str, n: int, size: int) -> None:
    study = parse_study_text(
        infer_study(as_columns({"age": np.arange(n) % 5, "ill": np.arange(n) % 2}), protocol)[0]
    )
    assert study.participation.size == size and study.data is None
    if protocol in ("anonml", "ddml"):
        assert study.participation.minimum == size // 2
    if study.ddml is not None:
        assert study.ddml.n_instances <= study.participation.minimum and study.ddml.batch_size == 1
    if study.pfds is not None:
        assert (
            study.pfds.n_holders == (20 if n > 2000 else 3)
            and study.participation.minimum <= study.pfds.n_holders
        )
    make_plan(study)


def test_infer_marks_each_range_and_list_as_read_from_data() -> None:
    columns: dict[str, list[Any]] = {
        "age": [*NUMBERS[:-1], None],
        "kind": ["u", "v"] * 100,
        "ill": LABEL,
    }
    text, _ = infer_study(as_columns(columns), "anonml")
    for line in text.splitlines():
        assert not line.startswith(("range", "values", "missing")) or "# READ FROM THE DATA" in line
    study = parse_study_text(text)
    assert [feature.missing for feature in study.feature] == [True, False]


@pytest.mark.parametrize("n_rows", [30, 200])
@pytest.mark.parametrize("protocol", STARTER_PROTOCOLS)
def test_infer_marks_each_figure_that_follows_from_the_number_of_rows(
    protocol: str, n_rows: int
) -> None:
    """A figure that differs between tables of different length is a fact about the rows."""
    drafts = [
        infer_study(as_columns({"age": np.arange(n) % 9, "ill": np.arange(n) % 2}), protocol)[0]
        for n in (n_rows, 40 * n_rows)
    ]
    lines = [dict(re.findall(r"^(\w+ =) (.*)$", text, re.MULTILINE)) for text in drafts]
    differing = [key for key in lines[0] if lines[0][key] != lines[1][key]]
    assert "size =" in differing
    # A figure that is the same for every long table says nothing exact about its rows.
    for key in differing:
        assert "# READ FROM THE DATA: " in lines[0][key], key
    for key in ("size", "minimum", "n_holders"):
        for line in (line for line in drafts[0].splitlines() if line.startswith(f"{key} =")):
            assert "# READ FROM THE DATA: " in line or (protocol, key) == ("sdq", "minimum")


@pytest.mark.parametrize("protocol", STARTER_PROTOCOLS)
def test_infer_keeps_no_words_of_the_starter(protocol: str) -> None:
    text, _ = infer_study(as_columns({"age": NUMBERS, "ill": LABEL}), protocol)
    study = parse_study_text(text)
    assert (
        study.title == "Predict ill"
        and study.contact == "(write whom to ask)"
        and "(write what" in study.purpose
    )
    assert not any(
        word in text.lower()
        for word in ("patient", "claim", "course", "ever spends", "example.org")
    )
    assert study.privacy.unit == (
        "person" if protocol == "anonml" else "update" if protocol == "ddml" else "record"
    )


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"ill": LABEL}, "a single column"),
        ({"a": [], "ill": []}, "no rows"),
        ({f"f{i}": [1] for i in range(9_002)}, "9,002 columns; a study has at most 2,000"),
        (
            {"39": [1, 2] * 9, "SECRET": ["u", "v"] * 9, "ill": ["y", "n"] * 9},
            "Column 1 has a name that looks like a cell",
        ),
        (
            {
                "a": [1, 2] * 9,
                "SECRET": ["SECRET", "v"] * 9,
                "u": ["u", "w"] * 9,
                "ill": ["y", "n"] * 9,
            },
            "Column 2 has a name that looks",
        ),
        (
            {"a": [1, 2] * 9, "SECRET\n": ["u", "v"] * 9, "ill": ["y", "n"] * 9},
            "Column 2 has a name that no feature can have",
        ),
        (
            {"a": NUMBERS, "SECRET": [f"SECRET {i}" for i in range(200)]},
            "has 200 different values in 200 rows",
        ),
        ({"a": [1, 2, 3], "ill": ["SECRET", "u", "u"]}, "The file has 3 rows"),
        ({"a": NUMBERS[:9], "ill": [*"uvwxy", *"uvwx"]}, "has 5 different values in 9 rows"),
        ({"a": NUMBERS, "ill": [*LABEL[:199], None]}, "row 200 has a value that is missing"),
        ({"a": NUMBERS, "ill": [*LABEL[:199], " "]}, "row 200 has a value that is missing"),
        ({"a": [1.7e308, -1.7e308] * 100, "ill": LABEL}, "range of the numbers is too large"),
        (
            {f"f{i}": [f"{'v' * 190} {j % 100}" for j in range(200)] for i in range(60)}
            | {"ill": LABEL},
            "bytes; at most 1,000,000",
        ),
    ],
)
def test_infer_error_contains_no_cell(columns: dict[str, Any], what: str) -> None:
    error = infer_invalid(columns)
    assert what in str(error) and "SECRET" not in str(error) and "1.7" not in str(error)


def test_infer_accepts_column_name_among_its_values() -> None:
    assert draft_study(spam=["spam", "ham"] * 100)[0].feature[0].values == ("ham", "spam")


@pytest.mark.parametrize("protocol", ["ddml", "pfds"])
def test_infer_rejects_missing_and_constant_numeric_labels(protocol: str) -> None:
    prices = np.arange(200) * 1.5
    assert draft_study(protocol, prices, age=NUMBERS)[0].label.range == (0.0, 298.5)
    for gap in (None, "nan"):
        error = infer_invalid({"age": NUMBERS, "price": [*map(str, prices[:-1]), gap]}, protocol)
        assert error.code == "DATA-005" and "row 200" in error.what
    assert infer_invalid({"age": NUMBERS, "price": [5] * 200}, protocol).code == "DATA-007"
