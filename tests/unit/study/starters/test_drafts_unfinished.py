"""Unfinished drafts: marks next to values, and placeholders of purpose and contact."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from shoal.data.schema import as_columns
from shoal.errors import SpecError
from shoal.study.starters import STARTER_PROTOCOLS, read_starter
from shoal.study.starters.drafts import DRAFT_FIX, find_unfinished, find_unfinished_in_text
from shoal.study.starters.infer import infer_study


def draft_study(protocol: str = "anonml", n_features: int = 2) -> str:
    columns = {f"f{i}": np.arange(200) % (5 + i) for i in range(n_features)} | {
        "ill": np.arange(200) % 2
    }
    return infer_study(as_columns(columns), protocol)[0]


def remove_marks(text: str) -> str:
    return re.sub(" *# READ FROM THE DATA: .*", "", text)


def write_purpose_and_contact(text: str) -> str:
    text = re.sub("^purpose = .*", 'purpose = "Find out."', text, flags=re.MULTILINE)
    return re.sub("^contact = .*", "contact = 'me@example.org'", text, flags=re.MULTILINE)


@pytest.mark.parametrize("protocol", STARTER_PROTOCOLS)
def test_draft_is_unfinished_until_marks_and_words_are_replaced(protocol: str) -> None:
    text = draft_study(protocol)
    first, second = find_unfinished_in_text(text)
    assert "read from data" in first and "purpose and the contact" in second
    assert find_unfinished_in_text(write_purpose_and_contact(text)) == [
        first
    ] and find_unfinished_in_text(remove_marks(text)) == [second]
    done = write_purpose_and_contact(remove_marks(text))
    # The explanation above the columns is still there; it marks no value.
    assert "# Values marked READ FROM THE DATA" in done and find_unfinished_in_text(done) == []


@pytest.mark.parametrize("protocol", STARTER_PROTOCOLS)
def test_starter_is_not_unfinished(protocol: str) -> None:
    assert find_unfinished_in_text(read_starter(protocol)) == []


def test_find_unfinished_names_lines_but_no_values() -> None:
    text = draft_study(n_features=9)
    marked = [i for i, line in enumerate(text.splitlines(), 1) if "READ FROM THE DATA:" in line]
    first, second = find_unfinished_in_text(text)
    assert f"on lines {', '.join(map(str, marked[:5]))} and {len(marked) - 5} more were" in first
    at = [
        text.splitlines().index(line) + 1
        for line in text.splitlines()
        if line.startswith(("purpose", "contact"))
    ]
    assert (
        second
        == f"The purpose and the contact still have their placeholders (lines {at[0]}, {at[1]})."
    )
    one = write_purpose_and_contact(remove_marks(text)).replace(
        "range = [0, 4]", "  range = [\n0,\n4]   #READ FROM THE DATA"
    )
    assert find_unfinished_in_text(one)[0].startswith(
        f"The value on line {one[: one.index('#READ')].count(chr(10)) + 1} was"
    )
    alone = write_purpose_and_contact(text).replace(
        "contact = 'me@example.org'", "contact = '(write whom to ask) '"
    )
    assert "The contact still has its placeholder (line " in find_unfinished_in_text(alone)[1]


def test_list_of_left_out_columns_is_unfinished_until_removed() -> None:
    columns = {"id": [f"k{i}" for i in range(200)], "age": np.arange(200) % 50}
    text, _ = infer_study(as_columns(columns | {"ill": np.arange(200) % 2}), "anonml")
    done = write_purpose_and_contact(
        "\n".join(
            line if line.startswith("#") else remove_marks(line) for line in text.splitlines()
        )
    )
    (line,) = [line for line in done.splitlines() if line.startswith("# READ FROM THE DATA:")]
    assert line.endswith('left out, because they look like names or identifiers: "id"')
    (found,) = find_unfinished_in_text(done)
    assert found.startswith(f"The value on line {done.splitlines().index(line) + 1} was read")
    assert find_unfinished_in_text(done.replace(line, "")) == []


def test_find_unfinished_reads_a_file_or_raises_spec_001(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(draft_study())
    assert find_unfinished(tmp_path / "study.toml") == find_unfinished_in_text(draft_study())
    with pytest.raises(SpecError) as error:
        find_unfinished(tmp_path / "none.toml")
    assert error.value.code == "SPEC-001"
    assert (
        "READ FROM THE DATA by public knowledge" in DRAFT_FIX
        and "write purpose and contact" in DRAFT_FIX
    )
