"""Where each key of a TOML file stands, so that an error can name the line.

`tomllib` gives values without positions. This scanner reads the same text again, after `tomllib` has accepted it, and keeps the
line of every key and list element. It knows no values: it skips over strings, numbers and dates, and follows only the structure.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

from shoal.study.problems import Path

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SPACE = re.compile(r"[ \t]*")
_GAP = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_SCALAR = re.compile(r"[^,\]}\n#]+")
# A multi-line string may end in up to two quotes of its own before the closing three.
_STRING = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*"{3,5}' r"|'''(?:[^']|'(?!''))*'{3,5}" r'|"(?:[^"\\\n]|\\.)*"' r"|'[^'\n]*'",
    re.DOTALL,
)


class Lines:
    """The lines of the keys of a TOML text that `tomllib` accepts.

    Examples
    --------
    >>> lines = Lines('title = "x"\\n[[feature]]\\nname = "a"\\nrange = [0,\\n  9]\\n')
    >>> lines.of(("feature", 0, "name")), lines.of(("feature", 0, "range", 1)), lines.of(("feature", 0, "bins"))
    (3, 5, 2)
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._counted, self._line = 0, 1
        self._where: dict[Path, int] = {}
        self._sizes: dict[Path, int] = {}
        self._scan()

    def of(self, path: Path) -> int:
        """The line of a key, or of the nearest table or list around it that stands in the file; 1 for the file as a whole."""
        for end in range(len(path), 0, -1):
            if path[:end] in self._where:
                return self._where[path[:end]]
        return 1

    def paths(self) -> Iterator[Path]:
        """Every key and list element that has a line of its own."""
        return iter(self._where)

    def _scan(self) -> None:
        table: Path = ()
        self._skip(_GAP)
        while self._at < len(self._text):
            line = self._here()
            if self._text.startswith("[[", self._at):
                self._at += 2
                table = self._resolve(self._key())
                position = self._sizes.get(table, 0)
                self._sizes[table] = position + 1
                self._note(table, line)
                table = (*table, position)
                self._at += 2
            elif self._text[self._at] == "[":
                self._at += 1
                table = self._resolve(self._key())
                self._at += 1
            else:
                self._pair(table)
                self._skip(_GAP)
                continue
            self._note(table, line)
            self._skip(_GAP)

    def _pair(self, table: Path) -> None:
        """``key = value``, at the key."""
        line = self._here()
        path = table
        for part in self._key():
            path = (*path, part)
            self._note(path, line)
        self._at += 1
        self._skip(_SPACE)
        self._value(path)

    def _value(self, path: Path) -> None:
        opening = self._text[self._at]
        if opening in "\"'":
            self._skip(_STRING)
        elif opening in "[{":
            self._at += 1
            self._skip(_GAP)
            position = 0
            while self._text[self._at] not in "]}":
                if opening == "[":
                    self._note((*path, position), self._here())
                    self._value((*path, position))
                else:
                    self._pair(path)
                position += 1
                self._skip(_GAP)
                if self._text[self._at] == ",":
                    self._at += 1
                    self._skip(_GAP)
            self._at += 1
        else:
            self._skip(_SCALAR)

    def _key(self) -> tuple[str, ...]:
        """A dotted key, up to its ``=`` or ``]``."""
        parts = []
        while True:
            self._skip(_SPACE)
            quoted = self._text[self._at] in "\"'"
            raw = self._skip(_STRING if quoted else _BARE)
            parts.append(str(tomllib.loads(f"key = {raw}")["key"]) if quoted else raw)
            self._skip(_SPACE)
            if self._text[self._at] != ".":
                return tuple(parts)
            self._at += 1

    def _resolve(self, parts: tuple[str, ...]) -> Path:
        """The path of a table header: a name of a list of tables on the way stands for its last table."""
        path: Path = ()
        for part in parts[:-1]:
            path = (*path, part)
            self._note(path, self._here())
            path = (*path, self._sizes[path] - 1) if path in self._sizes else path
        return (*path, parts[-1])

    def _note(self, path: Path, line: int) -> None:
        self._where.setdefault(path, line)

    def _here(self) -> int:
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        return self._line

    def _skip(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            raise ValueError(f"unexpected text at {self._at}")
        self._at = match.end()
        return match.group()
