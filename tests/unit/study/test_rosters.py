"""Roster files: names and keys in their order, and every other file refused in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.crypto.roster import Identity
from shoal.errors import SpecError
from shoal.study.rosters import MAX_BYTES, load_roster, parse_roster

KEYS = [Identity.from_seed(bytes([i] * 32)).public for i in range(3)]


def block(name: str, key: str) -> str:
    return f'[[member]]\nname = "{name}"\nkey = "{key}"\n'


def test_members_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "roster.toml"
    path.write_text("# three\n" + "".join(block(name, key.hex()) for name, key in zip("cab", KEYS, strict=True)), encoding="utf-8-sig")
    assert [(member.name, member.key) for member in load_roster(path)] == list(zip("cab", KEYS, strict=True))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "member = 3",
        "member = []",
        "[[member]]",
        "rubbish",
        "[[" * 5000,
        "member = [1]",
        block("a", "ab"),
        block("a", "zz" * 32),
        block("a", KEYS[0].hex()) + "role = 1",
        "[[member]]\nname = 3\nkey = 4",
        "title = 'x'\n" + block("a", KEYS[0].hex()),
    ],
)
def test_what_is_no_roster_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="SERVE-004"):
        parse_roster(text)


@pytest.mark.parametrize("entry", [block("a", "00" * 32), block("a\\nb", KEYS[0].hex()), block("", KEYS[0].hex())])
def test_names_and_keys_that_cannot_be_used(entry: str) -> None:
    with pytest.raises(SpecError, match="MANIFEST-002"):
        parse_roster(entry)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"\xff\xfe")
    (tmp_path / "large").write_bytes(b"#" * (MAX_BYTES + 1))
    for name in ("none", ".", "latin", "large", "a\0b"):
        with pytest.raises(SpecError, match="SERVE-004"):
            load_roster(tmp_path / name)
