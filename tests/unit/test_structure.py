"""Rules of the source tree that keep it easy to find things in; see `docs/architecture.md`."""

from __future__ import annotations

import ast
import re

import pytest

from tools.readability import (
    ROOT,
    SOURCE,
    find_classes,
    find_prefix_families,
    find_protocol_literals,
    knows_protocol,
    read_modules,
)

MODULES = read_modules()
MAX_LINES = 600
MAX_FILES = 403
MAX_PARAMETERS = 7

KNOW_ALL_PROTOCOLS = ("study/spec.py", "models/model.py", "report/sections/protocols.py")
"""Files below `src/shoal` that name all protocols, apart from those named after one."""


def test_source_has_few_files() -> None:
    assert len(MODULES) <= MAX_FILES


def test_no_file_is_too_long() -> None:
    assert {m.name: len(m.lines) for m in MODULES if len(m.lines) > MAX_LINES} == {}


def test_protocol_names_occur_only_in_files_of_a_protocol() -> None:
    """Other files ask `shoal.study.registry`; a new protocol then adds files and one line."""
    found = {
        f"{module.name}:{line}"
        for module in MODULES
        if not knows_protocol(module) and not module.name.endswith(KNOW_ALL_PROTOCOLS)
        for line in find_protocol_literals(module)
    }
    assert found == set()


def test_functions_have_few_parameters() -> None:
    """Group parameters that travel together; estimators and commands are exempt."""
    found = {}
    for module in MODULES:
        if "/estimators/" in module.name or "/cli/" in module.name:
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
                names = [a.arg for a in arguments if a.arg not in ("self", "cls")]
                if len(names) > MAX_PARAMETERS:
                    found[f"{module.name}:{node.lineno} {node.name}"] = len(names)
    assert found == {}


def test_no_class_name_is_defined_twice() -> None:
    twice = {name: found for name, found in find_classes(MODULES).items() if len(found) > 1}
    assert twice == {}


def test_no_three_modules_of_a_folder_share_a_prefix() -> None:
    """Such modules are a package."""
    assert find_prefix_families(MODULES) == {}


def test_contributing_lists_every_top_level_package() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    rows = re.findall(r"^\| (`.+?) \|", text, re.MULTILINE)
    listed = set(re.findall(r"`([a-z_]+(?:/|\.py))`", " ".join(rows)))
    packages = {f"{path.name}/" for path in SOURCE.iterdir() if (path / "__init__.py").is_file()}
    modules = {path.name for path in SOURCE.glob("*.py") if not path.name.startswith("__")}
    assert listed == packages | modules


def test_architecture_lists_every_package() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    packages = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").is_file()}
    assert {name for name in packages if f"| `{name}/` |" not in text} == set()


@pytest.mark.parametrize(
    "path",
    re.findall(r"`([a-z_]+/[\w/.]+)`", (ROOT / "docs" / "architecture.md").read_text("utf-8")),
)
def test_paths_of_the_architecture_page_exist(path: str) -> None:
    path = re.sub(r"(\.py|/)?\.run_local$|\.run_local$", ".py", path)
    assert (SOURCE / path).exists() or (ROOT / path).exists(), path
