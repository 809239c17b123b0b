"""What makes a study a draft still: marks beside values and words that nobody has written; not the draft's own explanation."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from shoal.domain import as_columns
from shoal.errors import SpecError
from shoal.study.infer import study_like
from shoal.study.templates import PROTOCOLS, study_text
from shoal.study.unfinished import FIX, drafts_in, drafts_left


def drafted(protocol: str = "anonml", n_features: int = 2) -> str:
    columns = {f"f{i}": np.arange(200) % (5 + i) for i in range(n_features)} | {"ill": np.arange(200) % 2}
    return study_like(as_columns(columns), protocol)[0]


def replaced(text: str) -> str:
    return re.sub(" *# READ FROM THE DATA: .*", "", text)


def written(text: str) -> str:
    text = re.sub("^purpose = .*", 'purpose = "Find out."', text, flags=re.MULTILINE)
    return re.sub("^contact = .*", "contact = 'me@example.org'", text, flags=re.MULTILINE)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_draft_is_one_until_both_are_done(protocol: str) -> None:
    text = drafted(protocol)
    first, second = drafts_in(text)
    assert "read from the data" in first and "purpose and the contact" in second
    assert drafts_in(written(text)) == [first] and drafts_in(replaced(text)) == [second]
    done = written(replaced(text))
    # The explanation at the top of the columns is still there, and is about no value.
    assert "# What is marked READ FROM THE DATA" in done and drafts_in(done) == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_starter_is_no_draft(protocol: str) -> None:
    assert drafts_in(study_text(protocol)) == []


def test_lines_are_named_and_values_are_not() -> None:
    text = drafted(n_features=9)
    marked = [i for i, line in enumerate(text.splitlines(), 1) if "READ FROM THE DATA:" in line]
    first, second = drafts_in(text)
    assert f"on lines {', '.join(map(str, marked[:5]))} and {len(marked) - 5} more was" in first
    at = [text.splitlines().index(line) + 1 for line in text.splitlines() if line.startswith(("purpose", "contact"))]
    assert second == f"Nobody has written the purpose and the contact yet (lines {at[0]}, {at[1]})."
    one = written(replaced(text)).replace("range = [0, 4]", "  range = [\n0,\n4]   #READ FROM THE DATA")
    assert drafts_in(one)[0].startswith(f"What stands on line {one[: one.index('#READ')].count(chr(10)) + 1} was")
    alone = written(text).replace("contact = 'me@example.org'", "contact = '(write whom to ask) '")
    assert "written the contact yet (line " in drafts_in(alone)[1]


def test_a_file_is_read_or_refused(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(drafted())
    assert drafts_left(tmp_path / "study.toml") == drafts_in(drafted())
    with pytest.raises(SpecError) as error:
        drafts_left(tmp_path / "none.toml")
    assert error.value.code == "SPEC-001"
    assert "READ FROM THE DATA by public knowledge" in FIX and "write purpose and contact" in FIX
