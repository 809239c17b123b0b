"""Writes the reference pages that come from code: ``docs/reference/errors.md``. Run by ``make docs``."""

from __future__ import annotations

import sys
from pathlib import Path

from shoal.errors import CODES, ShoalError

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "errors.md"

HEAD = """# Error codes

Every error has a code that never changes its meaning, and says what is wrong (with the value, unless it is private), why, and what to do.
This page is written by `make docs` from the table in `shoal/errors.py`.

Exit codes of the commands: {exits}.

| code | meaning |
|---|---|
"""


def errors_page() -> str:
    """The page of error codes as text."""
    exits: dict[int, list[str]] = {}
    for kind in sorted(_tree(ShoalError), key=lambda kind: kind.exit_code):
        exits.setdefault(kind.exit_code, []).append(kind.__name__)
    listed = "; ".join(f"{code} {', '.join(names)}" for code, names in exits.items())
    rows = "".join(f"| `{code}` | {meaning} |\n" for code, meaning in sorted(CODES.items()))
    return HEAD.format(exits=listed) + rows


def _tree(kind: type[ShoalError]) -> list[type[ShoalError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in _tree(child))]


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(PAGE.read_text() != errors_page())
    PAGE.write_text(errors_page())
