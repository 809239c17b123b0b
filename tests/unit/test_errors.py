"""Error messages, the table of codes, and missing extras."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from shoal.errors import CODES, BudgetError, ShoalError, UsageError, require_extra

ROOT = Path(__file__).parent.parent.parent


def test_str_and_to_dict_have_three_parts() -> None:
    error = BudgetError(
        "BUDGET-002",
        "This asks for epsilon 1.5; 0.7 is left.",
        why="3 studies used 3.3.",
        fix="Ask for less.",
    )
    assert str(error).splitlines() == [
        "BUDGET-002  This asks for epsilon 1.5; 0.7 is left.",
        "  why       3 studies used 3.3.",
        "  fix       Ask for less.",
    ]
    assert error.to_dict() == {
        "code": "BUDGET-002",
        "what": error.what,
        "why": error.why,
        "fix": error.fix,
    }
    assert error.exit_code == 4


def test_why_and_fix_are_optional() -> None:
    assert str(ShoalError("USAGE-001", "No.")) == "USAGE-001  No."
    assert ShoalError("USAGE-001", "No.").to_dict() == {"code": "USAGE-001", "what": "No."}


def test_unknown_code_raises_key_error() -> None:
    with pytest.raises(KeyError):
        ShoalError("NOPE-001", "No.")


def test_table_has_exactly_the_codes_of_the_source() -> None:
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "tools").rglob("*.py")]
    texts = [path.read_text() for path in sources if path.name != "errors.py"]
    texts.append(inspect.getsource(require_extra))
    assert {code for text in texts for code in re.findall(r'"([A-Z]+-\d{3})"', text)} == set(CODES)


def test_require_extra_accepts_installed_modules() -> None:
    require_extra("serve", "json", "os", purpose="A test")


@pytest.mark.parametrize(
    ("modules", "what"),
    [
        (("json", "no_such"), "A test needs no_such, which is not installed."),
        (("no_such", "nor_this"), "A test needs no_such, nor_this, which are not installed."),
    ],
)
def test_require_extra_names_missing_modules_and_extra(modules: tuple[str, ...], what: str) -> None:
    with pytest.raises(UsageError) as caught:
        require_extra("serve", *modules, purpose="A test")
    assert (caught.value.code, caught.value.what) == ("USAGE-002", what)
    assert caught.value.fix == "pip install 'shoal[serve]'"
