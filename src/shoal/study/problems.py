"""One thing that is wrong with a study: a code, the key that it is about, and what to do."""

from __future__ import annotations

from dataclasses import dataclass

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a study.

    Parameters
    ----------
    code
        A key of `shoal.errors.CODES`.
    path
        The key that it is about, from the top of the file: ``("feature", 2, "bins")``.
    what, fix
        The sentences of the error.
    """

    code: str
    path: Path
    what: str
    fix: str | None = None
