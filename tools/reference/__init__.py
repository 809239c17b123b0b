"""Write the reference pages that come from code: ``python -m tools.reference [--check]``.

``docs/reference/errors.md`` comes from the source, ``commands.md`` from the commands' docstrings,
``estimators.md`` from the docstrings of the public Python names, the list of decisions from their
headings, and the picture of the ledger's states from its transition table. ``make docs`` runs it.
With ``--check`` nothing is written; the names of pages that are not current are printed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tools.reference.commands import commands_page
from tools.reference.errors import error_page
from tools.reference.python import python_page
from tools.reference.sources import read_sources
from tools.reference.states import ledger_states

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_DECISIONS = """# Decisions

Each decision is one page: context, options, choice, consequences.
A decision is not rewritten; a later one may supersede it.

"""


def pages() -> dict[str, str]:
    """Return the text of each generated page, by its path below docs."""
    return {
        "reference/errors.md": error_page(read_sources(ROOT / "src", ROOT / "tools")),
        "reference/commands.md": commands_page(),
        "reference/estimators.md": python_page(),
        "decisions/index.md": decisions_page(DOCS / "decisions"),
        "guide/ledger-states.svg": ledger_states(),
    }


def decisions_page(where: Path) -> str:
    """Return the list of decision records, by their headings."""
    heads = {
        path.name: path.read_text("utf-8").split("\n", 1)[0].removeprefix("# ")
        for path in sorted(where.glob("0*.md"))
    }
    return _DECISIONS + "".join(f"- [{head}]({name})\n" for name, head in heads.items())


def find_stale(wanted: dict[str, str], docs: Path = DOCS) -> list[str]:
    """Return the names of files that are missing or differ from the wanted text."""
    return sorted(
        name
        for name, text in wanted.items()
        if not (docs / name).is_file() or (docs / name).read_text("utf-8") != text
    )


def main() -> int:
    """Write the pages that are not current; with ``--check`` only print their names."""
    wanted = pages()
    stale = find_stale(wanted)
    if "--check" in sys.argv:
        print(
            "\n".join([*stale, "Not current: run make docs."])
            if stale
            else "All reference pages are current."
        )
        return bool(stale)
    for name in stale:
        (DOCS / name).write_text(wanted[name], "utf-8")
    return 0
