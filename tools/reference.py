"""Writes the reference pages that come from code: ``python -m tools.reference [--check]``. Run by ``make docs``.

``docs/reference/errors.md`` with a page for each code, ``commands.md`` from the commands' docstrings, ``estimators.md`` from the
docstrings of the public Python names, the list of decisions, and the picture of the ledger's states. With ``--check`` nothing is
written, and what is not current is named.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tools.reference_commands import commands_page
from tools.reference_errors import error_pages
from tools.reference_python import python_page
from tools.reference_sources import read_sources
from tools.reference_states import ledger_states

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"

_DECISIONS = """# Decisions

One page each: context, options, choice, consequences. They are not rewritten; a later one may supersede an earlier one.

"""


def pages() -> dict[str, str]:
    """Name of a file below docs -> its text."""
    errors = error_pages(read_sources(ROOT / "src", ROOT / "tools"))
    return {
        **{f"reference/{name}": text for name, text in errors.items()},
        "reference/commands.md": commands_page(),
        "reference/estimators.md": python_page(),
        "decisions/index.md": decisions_page(DOCS / "decisions"),
        "guide/ledger-states.svg": ledger_states(),
    }


def decisions_page(where: Path) -> str:
    """The list of decision records, by their own headings."""
    heads = {path.name: path.read_text("utf-8").split("\n", 1)[0].removeprefix("# ") for path in sorted(where.glob("0*.md"))}
    return _DECISIONS + "".join(f"- [{head}]({name})\n" for name, head in heads.items())


def stale(wanted: dict[str, str], docs: Path = DOCS) -> list[str]:
    """Names of files that are not what they should be: missing, other, or about a code that there is no more."""
    there = {path.relative_to(docs).as_posix(): path for path in docs.glob("reference/errors/*.md")}
    there |= {name: docs / name for name in wanted if (docs / name).is_file()}
    return sorted(name for name in there.keys() | wanted.keys() if name not in there or there[name].read_text("utf-8") != wanted.get(name))


def main() -> int:
    """Write what is stale, or with ``--check`` name it."""
    wanted = pages()
    old = stale(wanted)
    if "--check" in sys.argv:
        print("\n".join([*old, "Not current: run make docs."]) if old else "All reference pages are current.")
        return bool(old)
    for name in old:
        path = DOCS / name
        path.parent.mkdir(exist_ok=True)
        if name in wanted:
            path.write_text(wanted[name], "utf-8")
        else:
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
