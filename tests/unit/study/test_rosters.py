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


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("# one\n[[member]\n", 2),
        ("# one\n\ntitle = 'x'\n" + block("a", KEYS[0].hex()), 3),
        (block("a", KEYS[0].hex()) + "\n" + block("b", "ab"), 5),
        (block("a", KEYS[0].hex()) + block("b", KEYS[1].hex()) + block("c", "00" * 32), 7),
        (block("a", KEYS[0].hex()) + '[[member]]\nname = "b', 5),
    ],
)
def test_errors_name_the_line(text: str, line: int, tmp_path: Path) -> None:
    (tmp_path / "roster.toml").write_text(text)
    with pytest.raises(SpecError) as refused:
        load_roster(tmp_path / "roster.toml")
    assert f"roster.toml:{line}  " in refused.value.what and refused.value.fix


def test_bytes_that_are_no_text_name_their_line(tmp_path: Path) -> None:
    (tmp_path / "roster.toml").write_bytes(b"# one\n# two\n\xff\n")
    with pytest.raises(SpecError, match="toml:3  This is not UTF-8 text"):
        load_roster(tmp_path / "roster.toml")


def test_a_roster_has_a_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.study.rosters.MAX_ROSTER", 2)
    blocks = [block(name, key.hex()) for name, key in zip("abc", KEYS, strict=True)]
    assert len(parse_roster("".join(blocks[:2]))) == 2
    with pytest.raises(SpecError, match=r"SERVE-004  roster.toml:7  A roster has at most 2 members"):
        parse_roster("".join(blocks))


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
