"""Errors: sentences with a code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shoal.errors import CODES, BudgetError, ShoalError

ROOT = Path(__file__).parent.parent.parent


def test_message_has_three_parts() -> None:
    error = BudgetError("BUDGET-002", "This asks for epsilon 1.5; 0.7 is left.", why="3 studies used 3.3.", fix="Ask for less.")
    assert str(error).splitlines() == [
        "BUDGET-002  This asks for epsilon 1.5; 0.7 is left.",
        "  why       3 studies used 3.3.",
        "  fix       Ask for less.",
    ]
    assert error.to_dict() == {"code": "BUDGET-002", "what": error.what, "why": error.why, "fix": error.fix}
    assert error.exit_code == 4


def test_parts_may_be_left_out() -> None:
    assert str(ShoalError("USAGE-001", "No.")) == "USAGE-001  No."
    assert ShoalError("USAGE-001", "No.").to_dict() == {"code": "USAGE-001", "what": "No."}


def test_unknown_code_is_a_bug() -> None:
    with pytest.raises(KeyError):
        ShoalError("NOPE-001", "No.")


def test_every_code_in_the_source_is_in_the_table_and_used() -> None:
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "tools").rglob("*.py")]
    used = {code for path in sources if path.name != "errors.py" for code in re.findall(r'"([A-Z]+-\d{3})"', path.read_text())}
    assert used == set(CODES)
