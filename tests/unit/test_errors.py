"""Error messages, the table of codes, and missing extras."""

from __future__ import annotations

import importlib.metadata
import inspect
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import (
    CODES,
    BudgetError,
    ShoalError,
    UsageError,
    format_install_command,
    format_upgrade_command,
    require_extra,
)

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
    assert caught.value.fix == format_install_command("serve")


def install_from(monkeypatch: pytest.MonkeyPatch, origin: dict[str, Any] | None) -> None:
    """Make shoal look as if it was installed from somewhere; None: from a package index."""

    class Distribution:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return None if origin is None else json.dumps(origin)

    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: Distribution())


def test_install_command_names_interpreter_and_clone_of_editable_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = tmp_path / "a clone"
    clone.mkdir()
    (clone / "pyproject.toml").touch()
    install_from(monkeypatch, {"url": clone.as_uri(), "dir_info": {"editable": True}})
    pip = [sys.executable, "-m", "pip", "install", "-e"]
    assert shlex.split(format_install_command("serve", "mpc")) == [*pip, f"{clone}[serve,mpc]"]
    assert shlex.split(format_upgrade_command()) == [
        *("git", "-C", str(clone), "pull", "&&"),
        *(*pip, str(clone)),
    ]


@pytest.mark.parametrize(
    "origin",
    [
        None,
        {"url": "file:///no/such/directory", "dir_info": {"editable": True}},
        {"url": "file:///tmp", "dir_info": {}},
        {"url": "https://study.example.org/shoal.whl", "archive_info": {}},
    ],
    ids=["index", "deleted clone", "copied", "archive"],
)
def test_install_command_is_for_a_clone_without_editable_install(
    origin: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_from(monkeypatch, origin)
    assert format_install_command("serve", "mpc") == "pip install -e '.[serve,mpc]'"
    assert format_upgrade_command() == "git pull && pip install -e ."


def test_install_command_is_for_a_clone_without_installation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nowhere(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", nowhere)
    assert format_install_command("serve") == "pip install -e '.[serve]'"
