"""`shoal close`: needs the analyst's key, ends one study, and never prints the key."""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.main import run
from shoal.coordinator.publishing import load_or_create_secrets
from shoal.coordinator.store import open_store
from shoal.coordinator.store.base import StudyOutcome
from shoal.entropy import SystemEntropy
from tests.support.participants import folder, make_manifest
from tests.support.servers import Live, live

__all__ = ["folder"]

ANONML, PFDS = make_manifest("anonml", 20), make_manifest("pfds", 3, pfds={"n_holders": 3})


@pytest.fixture
def key(folder: Path) -> Path:
    """The file with the analyst's key for the coordinator with its store in the folder."""
    with open_store(f"sqlite:{folder / 'coordinator.db'}") as store:
        _, made = load_or_create_secrets(store, SystemEntropy())
    (folder / "key.txt").write_text(f"{made}\n")
    return folder / "key.txt"


@pytest.fixture
def coordinator(folder: Path, key: Path) -> Iterator[Live]:
    assert key.exists()
    with live(folder, ANONML, PFDS) as running:
        yield running


def statuses(coordinator: Live) -> list[str]:
    return [record.status for record in coordinator.store.list_studies()]


def close(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, Any]:
    """The exit code, and what was said to a program; nothing else was."""
    code = run(["close", *map(str, words), "--json"])
    printed = capsys.readouterr()
    assert printed.err == ""
    return code, json.loads(printed.out)


def test_close_rejects_wrong_key(
    coordinator: Live, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.txt").write_text("0f" * 32)
    code, told = close(
        capsys, coordinator.url, PFDS.short_digest, "--key-file", tmp_path / "other.txt"
    )
    assert (code, told["error"]["code"]) == (7, "AUTH-002") and "shoal serve" in told["error"][
        "fix"
    ]
    assert "0f0f" not in json.dumps(told) and statuses(coordinator) == ["open", "open"]


@pytest.mark.parametrize("study", ["zz", "", "Another study"])
def test_close_rejects_unknown_study(
    study: str, coordinator: Live, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = close(capsys, coordinator.url, study, "--key-file", key)
    assert (code, told["error"]["code"]) == (2, "USAGE-001")
    assert all(title in told["error"]["why"] for title in ("Wind, by anonml", "Wind, by pfds"))
    assert statuses(coordinator) == ["open", "open"]


def test_close_ends_one_study_and_can_be_repeated(
    coordinator: Live, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = close(capsys, coordinator.url, PFDS.digest.hex()[:12], "--key-file", key)
    assert statuses(coordinator) == ["open", "closed"]
    assert first == close(capsys, coordinator.url, "Wind, by pfds", "--key-file", key)
    code, told = first
    assert (code, told["study"], told["status"], told["model"]) == (
        0,
        PFDS.digest.hex(),
        "closed",
        None,
    )
    assert run(["close", coordinator.url, PFDS.short_digest, "--key-file", str(key)]) == 0
    printed = capsys.readouterr().out
    assert (
        "status    closed: The analyst has closed the study." in printed
        and "spent stays spent" in printed
    )
    assert statuses(coordinator) == ["open", "closed"]


def test_close_does_not_change_ended_study(
    coordinator: Live, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    coordinator.store.end(PFDS.digest.hex(), StudyOutcome("done", b'{"a": "model"}'))
    code, told = close(capsys, coordinator.url, PFDS.short_digest, "--key-file", key)
    assert (code, told["status"]) == (0, "done") and statuses(coordinator) == ["open", "done"]
    assert told["model"] == f"{coordinator.url}/v1/studies/{PFDS.digest.hex()}/model"


def test_close_prints_reason_in_one_line(
    coordinator: Live, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    coordinator.store.end(
        PFDS.digest.hex(),
        StudyOutcome("failed", reason="Too few.\n  why       Nobody \x1b[2J came."),
    )
    assert run(["close", coordinator.url, PFDS.short_digest, "--key-file", str(key)]) == 0
    printed = capsys.readouterr().out
    assert "status    failed: " in printed and printed.count("\n") == 3 and "\x1b" not in printed


def test_close_reads_key_from_standard_input(
    coordinator: Live,
    key: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(key.read_text().upper().replace("-", " ")))
    code, told = close(capsys, coordinator.url, PFDS.short_digest, "--key-file", "-")
    assert (code, told["status"]) == (0, "closed")


def test_close_reports_unreachable_coordinator(
    key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    code, told = close(capsys, f"http://127.0.0.1:{port}", "7f", "--key-file", key)
    assert (code, told["error"]["code"]) == (6, "NET-001")
    code, told = close(capsys, "http://example.org", "7f", "--key-file", key)
    assert (code, told["error"]["code"]) == (2, "USAGE-001") and "TLS" in told["error"]["what"]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "none",
        "ab" * 31,
        "ab" * 33,
        "zz" * 32,
        "é" * 64,
        "\0" * 64,
        f"key: {'ab' * 32}",
        "ab" * 5000,
    ],
)
def test_close_does_not_send_malformed_key(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "key.txt").write_text(content, encoding="utf-8")
    code, told = close(capsys, "http://127.0.0.1:1", "7f", "--key-file", tmp_path / "key.txt")
    assert (code, told["error"]["code"]) == (
        2,
        "USAGE-001",
    ) and "There is no analyst's key in" in told["error"]["what"]
    assert "abab" not in json.dumps(told)


def test_close_rejects_unreadable_key_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("none.txt", "."):
        code, told = close(capsys, "http://127.0.0.1:1", "7f", "--key-file", tmp_path / name)
        assert (code, told["error"]["code"]) == (2, "USAGE-001") and "cannot be read" in told[
            "error"
        ]["what"]


def test_close_does_not_prompt_without_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    code, told = close(capsys, "http://127.0.0.1:1", "7f")
    assert (code, told["error"]["code"]) == (2, "USAGE-001") and "--key-file" in told["error"][
        "fix"
    ]
