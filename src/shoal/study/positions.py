"""Line numbers of TOML keys, for errors.

`tomllib` returns values without positions. The loader runs this scanner over the same text after
`tomllib` has accepted it. It keeps the line of every key and list element. It skips strings,
numbers and dates, and follows the structure only.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

from shoal.study.constraints import KeyPath

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SPACE = re.compile(r"[ \t]*")
_GAP = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_SCALAR = re.compile(r"[^,\]}\n#]+")
# A multi-line string may end in up to two quotes before the closing three.
_STRING = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*"{3,5}'
    r"|'''(?:[^']|'(?!''))*'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)


class KeyPositions:
    """The lines of the keys of a TOML text that `tomllib` accepts.

    Examples
    --------
    >>> lines = KeyPositions('title = "x"\\n[[feature]]\\nname = "a"\\nrange = [0,\\n  9]\\n')
    >>> (
    ...     lines.find_line(("feature", 0, "name")),
    ...     lines.find_line(("feature", 0, "range", 1)),
    ...     lines.find_line(("feature", 0, "bins")),
    ... )
    (3, 5, 2)
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._offset = 0
        self._line_offset, self._line = 0, 1
        self._line_numbers: dict[KeyPath, int] = {}
        self._sizes: dict[KeyPath, int] = {}
        self._scan()

    def find_line(self, path: KeyPath) -> int:
        """Return the line of a key, or of the nearest table or list around it.

        A key without one is on line 1.
        """
        for end in range(len(path), 0, -1):
            if path[:end] in self._line_numbers:
                return self._line_numbers[path[:end]]
        return 1

    def list_paths(self) -> Iterator[KeyPath]:
        """Return every key and list element that has a line."""
        return iter(self._line_numbers)

    def _scan(self) -> None:
        table: KeyPath = ()
        self._skip(_GAP)
        while self._offset < len(self._text):
            line = self._find_current_line()
            if self._text.startswith("[[", self._offset):
                self._offset += 2
                table = self._resolve_header(self._scan_key())
                position = self._sizes.get(table, 0)
                self._sizes[table] = position + 1
                self._record_line(table, line)
                table = (*table, position)
                self._offset += 2
            elif self._text[self._offset] == "[":
                self._offset += 1
                table = self._resolve_header(self._scan_key())
                self._offset += 1
            else:
                self._scan_pair(table)
                self._skip(_GAP)
                continue
            self._record_line(table, line)
            self._skip(_GAP)

    def _scan_pair(self, table: KeyPath) -> None:
        """Scan ``key = value``, from the key on."""
        line = self._find_current_line()
        path = table
        for part in self._scan_key():
            path = (*path, part)
            self._record_line(path, line)
        self._offset += 1
        self._skip(_SPACE)
        self._scan_value(path)

    def _scan_value(self, path: KeyPath) -> None:
        opening = self._text[self._offset]
        if opening in "\"'":
            self._skip(_STRING)
        elif opening in "[{":
            self._offset += 1
            self._skip(_GAP)
            position = 0
            while self._text[self._offset] not in "]}":
                if opening == "[":
                    self._record_line((*path, position), self._find_current_line())
                    self._scan_value((*path, position))
                else:
                    self._scan_pair(path)
                position += 1
                self._skip(_GAP)
                if self._text[self._offset] == ",":
                    self._offset += 1
                    self._skip(_GAP)
            self._offset += 1
        else:
            self._skip(_SCALAR)

    def _scan_key(self) -> tuple[str, ...]:
        """Scan a dotted key, up to its ``=`` or ``]``."""
        parts = []
        while True:
            self._skip(_SPACE)
            quoted = self._text[self._offset] in "\"'"
            raw = self._skip(_STRING if quoted else _BARE)
            parts.append(str(tomllib.loads(f"key = {raw}")["key"]) if quoted else raw)
            self._skip(_SPACE)
            if self._text[self._offset] != ".":
                return tuple(parts)
            self._offset += 1

    def _resolve_header(self, parts: tuple[str, ...]) -> KeyPath:
        """Return the path of a table header.

        In it, the name of a list of tables means the last table of the list.
        """
        path: KeyPath = ()
        for part in parts[:-1]:
            path = (*path, part)
            self._record_line(path, self._find_current_line())
            path = (*path, self._sizes[path] - 1) if path in self._sizes else path
        return (*path, parts[-1])

    def _record_line(self, path: KeyPath, line: int) -> None:
        self._line_numbers.setdefault(path, line)

    def _find_current_line(self) -> int:
        self._line += self._text.count("\n", self._line_offset, self._offset)
        self._line_offset = self._offset
        return self._line

    def _skip(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._offset)
        if match is None:
            raise ValueError(f"unexpected text at {self._offset}")
        self._offset = match.end()
        return match.group()
