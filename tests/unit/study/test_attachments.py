"""Roster files: order of names and keys, and errors of malformed files."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.crypto.identity import Identity
from shoal.errors import SpecError
from shoal.study.attachments import MAX_ROSTER_BYTES, load_roster, parse_roster

KEYS = [Identity.from_seed(bytes([i] * 32)).public_key for i in range(3)]


def format_member(name: str, key: str) -> str:
    return f'[[member]]\nname = "{name}"\nkey = "{key}"\n'


def test_roster_keeps_order_of_members(tmp_path: Path) -> None:
    path = tmp_path / "roster.toml"
    path.write_text(
        "# three\n"
        + "".join(format_member(name, key.hex()) for name, key in zip("cab", KEYS, strict=True)),
        encoding="utf-8-sig",
    )
    assert [(member.name, member.key) for member in load_roster(path)] == list(
        zip("cab", KEYS, strict=True)
    )


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
        format_member("a", "ab"),
        format_member("a", "zz" * 32),
        format_member("a", KEYS[0].hex()) + "role = 1",
        "[[member]]\nname = 3\nkey = 4",
        "title = 'x'\n" + format_member("a", KEYS[0].hex()),
    ],
)
def test_parse_roster_rejects_malformed_rosters(text: str) -> None:
    with pytest.raises(SpecError, match="SERVE-004"):
        parse_roster(text)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("# one\n[[member]\n", 2),
        ("# one\n\ntitle = 'x'\n" + format_member("a", KEYS[0].hex()), 3),
        (format_member("a", KEYS[0].hex()) + "\n" + format_member("b", "ab"), 5),
        (
            format_member("a", KEYS[0].hex())
            + format_member("b", KEYS[1].hex())
            + format_member("c", "00" * 32),
            7,
        ),
        (format_member("a", KEYS[0].hex()) + '[[member]]\nname = "b', 5),
    ],
)
def test_roster_errors_name_file_and_line(text: str, line: int, tmp_path: Path) -> None:
    (tmp_path / "roster.toml").write_text(text)
    with pytest.raises(SpecError) as refused:
        load_roster(tmp_path / "roster.toml")
    assert f"roster.toml:{line}  " in refused.value.what and refused.value.fix


def test_load_roster_names_line_of_bytes_that_are_not_utf_8(tmp_path: Path) -> None:
    (tmp_path / "roster.toml").write_bytes(b"# one\n# two\n\xff\n")
    with pytest.raises(SpecError, match="toml:3  This is not UTF-8 text"):
        load_roster(tmp_path / "roster.toml")


def test_parse_roster_rejects_too_many_members(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.study.attachments.MAX_ROSTER", 2)
    blocks = [format_member(name, key.hex()) for name, key in zip("abc", KEYS, strict=True)]
    assert len(parse_roster("".join(blocks[:2]))) == 2
    with pytest.raises(
        SpecError, match=r"SERVE-004  roster.toml:7  A roster has at most 2 members"
    ):
        parse_roster("".join(blocks))


@pytest.mark.parametrize(
    "entry",
    [
        format_member("a", "00" * 32),
        format_member("a\\nb", KEYS[0].hex()),
        format_member("", KEYS[0].hex()),
    ],
)
def test_parse_roster_rejects_unusable_names_and_keys(entry: str) -> None:
    with pytest.raises(SpecError, match="MANIFEST-002"):
        parse_roster(entry)


def test_load_roster_rejects_unreadable_files(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"\xff\xfe")
    (tmp_path / "large").write_bytes(b"#" * (MAX_ROSTER_BYTES + 1))
    for name in ("none", ".", "latin", "large", "a\0b"):
        with pytest.raises(SpecError, match="SERVE-004"):
            load_roster(tmp_path / name)
