"""Atomic writes: what appears, what is never replaced, and what is left after a failure."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from shoal.errors import ShoalError, StoreError, UsageError
from shoal.files import (
    check_path_is_free,
    replace_directory,
    replace_file,
    write_directory,
    write_new,
    write_private,
)


def list_names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def read_mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def fail_to_rename(self: Path, target: Path) -> Path:
    raise OSError(28, "No space left on device")


class TestWriteNew:
    def test_writes_content_and_leaves_no_other_file(self, tmp_path: Path) -> None:
        write_new(tmp_path / "a.txt", b"content")
        assert (tmp_path / "a.txt").read_bytes() == b"content" and list_names(tmp_path) == ["a.txt"]

    def test_mode_is_default_or_private(self, tmp_path: Path) -> None:
        old = os.umask(0o022)
        try:
            write_new(tmp_path / "a.txt", b"")
            write_new(tmp_path / "b.txt", b"", mode=0o600)
        finally:
            os.umask(old)
        assert read_mode(tmp_path / "a.txt") == 0o644 and read_mode(tmp_path / "b.txt") == 0o600

    def test_rejects_existing_file_directory_and_broken_link(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"old")
        (tmp_path / "directory").mkdir()
        (tmp_path / "link").symlink_to("missing")
        before = list_names(tmp_path)
        for name in before:
            with pytest.raises(UsageError, match="already exists") as caught:
                write_new(tmp_path / name, b"new")
            assert caught.value.code == "NEW-001"
            with pytest.raises(UsageError):
                check_path_is_free(tmp_path / name)
        assert list_names(tmp_path) == before and (tmp_path / "file").read_bytes() == b"old"
        check_path_is_free(tmp_path / "free")

    @pytest.mark.parametrize("name", ["missing/a.txt", "a\0b", "a" * 300])
    def test_unwritable_path_raises_with_code_of_caller(self, name: str, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match="cannot be written") as caught:
            write_new(tmp_path / name, b"", code="REL-010", fix="Do this.")
        assert (caught.value.code, caught.value.fix) == ("REL-010", "Do this.")
        assert list_names(tmp_path) == []


class TestReplaceFile:
    def test_replaces_file_and_link_but_not_target_of_link(self, tmp_path: Path) -> None:
        (tmp_path / "kept").write_bytes(b"kept")
        (tmp_path / "link").symlink_to("kept")
        for _ in range(2):
            replace_file(tmp_path / "link", b"new", code="REPORT-003", fix="")
        assert not (tmp_path / "link").is_symlink() and (tmp_path / "kept").read_bytes() == b"kept"

    def test_failure_leaves_old_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "a.txt").write_bytes(b"old")
        monkeypatch.setattr(Path, "replace", fail_to_rename)
        with pytest.raises(StoreError, match="No space left"):
            replace_file(tmp_path / "a.txt", b"new", code="REPORT-003", fix="")
        assert (tmp_path / "a.txt").read_bytes() == b"old" and list_names(tmp_path) == ["a.txt"]

    def test_private_file_is_readable_by_owner_only(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_bytes(b"old")
        write_private(tmp_path / "a.txt", b"new", code="LEDGER-001", fix="")
        assert read_mode(tmp_path / "a.txt") == 0o600


FILES = {"a.txt": "text", "inner/b.bin": b"\x00"}


class TestWriteDirectory:
    @pytest.mark.parametrize("exists", [False, True])
    def test_writes_all_files_into_new_or_empty_directory(
        self, exists: bool, tmp_path: Path
    ) -> None:
        directory = tmp_path / "made"
        if exists:
            directory.mkdir()
        write_directory(directory, FILES)
        assert list_names(tmp_path) == ["made"] and list_names(directory) == ["a.txt", "inner"]
        assert (directory / "inner" / "b.bin").read_bytes() == b"\x00"

    @pytest.mark.parametrize("exists", [False, True])
    def test_failed_check_writes_nothing(self, exists: bool, tmp_path: Path) -> None:
        directory = tmp_path / "made"
        if exists:
            directory.mkdir()

        def reject(staging: Path) -> None:
            assert list_names(staging) == ["a.txt", "inner"]
            raise ShoalError("REL-002", "It is rejected.")

        with pytest.raises(ShoalError, match="REL-002"):
            write_directory(directory, FILES, check=reject)
        assert list_names(tmp_path) == (["made"] if exists else [])
        assert not exists or list_names(directory) == []

    def test_failure_between_files_moves_them_back(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rename, renamed = Path.rename, []

        def fail_on_second(self: Path, target: Path) -> Path:
            renamed.append(self)
            if len(renamed) == 2:
                raise OSError(28, "No space left on device")
            return rename(self, target)

        monkeypatch.setattr(Path, "rename", fail_on_second)
        with pytest.raises(StoreError, match="No space left"):
            write_directory(tmp_path, FILES)
        assert list_names(tmp_path) == []

    def test_rejects_directory_with_files_and_link(self, tmp_path: Path) -> None:
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "a.txt").write_bytes(b"old")
        (tmp_path / "empty").mkdir()
        (tmp_path / "link").symlink_to("empty")
        for name in ("full", "link"):
            with pytest.raises(UsageError, match="not an empty directory"):
                write_directory(tmp_path / name, FILES)
        assert (tmp_path / "full" / "a.txt").read_bytes() == b"old"

    def test_missing_parent_is_named_with_command(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="does not exist") as caught:
            write_directory(tmp_path / "none" / "made", FILES)
        assert caught.value.fix == f"mkdir -p -- {tmp_path / 'none'}"


class TestReplaceDirectory:
    def test_replaces_existing_directory(self, tmp_path: Path) -> None:
        write_directory(tmp_path / "first", {"a": "1"})
        write_directory(tmp_path / "second", {"b": "2"})
        for source in ("first", "second"):
            replace_directory(tmp_path / source, tmp_path / "out", code="NEW-001", fix="")
        assert list_names(tmp_path / "out") == ["b"]
        assert list_names(tmp_path) == ["first", "out", "second"]

    @pytest.mark.parametrize("exists", [False, True])
    def test_failure_restores_old_directory(
        self, exists: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_directory(tmp_path / "source", {"a": "new"})
        if exists:
            write_directory(tmp_path / "out", {"a": "old"})
        rename = Path.rename

        def fail_on_new(self: Path, target: Path) -> Path:
            if self.name == "new":
                raise OSError(28, "No space left on device")
            return rename(self, target)

        monkeypatch.setattr(Path, "rename", fail_on_new)
        with pytest.raises(StoreError, match="No space left"):
            replace_directory(tmp_path / "source", tmp_path / "out", code="NEW-001", fix="")
        assert list_names(tmp_path) == (["out", "source"] if exists else ["source"])
        assert not exists or (tmp_path / "out" / "a").read_text() == "old"
