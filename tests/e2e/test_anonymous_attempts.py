"""`run_with_retries` repeats a study only if the machine was too slow for its window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from shoal.study.schedule import PhaseWindow
from tests.e2e.anonymous import N_ATTEMPTS, TooSlowError, run_with_retries
from tests.e2e.test_anonymous_ohttp import check_timing
from tests.support.http import Connection, Request
from tests.support.participants import make_manifest

OPENED = datetime(2030, 1, 1, tzinfo=UTC)
WINDOW = PhaseWindow(OPENED, OPENED + timedelta(seconds=40))


def test_run_with_retries_doubles_window_until_study_succeeds() -> None:
    tried: list[float] = []

    def run(home: Path, patience: float) -> str:
        assert list(home.iterdir()) == []
        (home / "file").touch()
        tried.append(patience)
        if len(tried) < N_ATTEMPTS:
            raise TooSlowError
        return "done"

    assert run_with_retries(run, 40.0) == "done" and tried == [40.0, 80.0, 160.0, 320.0]


@pytest.mark.parametrize(("error", "n"), [(TooSlowError, N_ATTEMPTS), (AssertionError, 1)])
def test_run_with_retries_raises_last_slow_and_any_other_error(
    error: type[Exception], n: int
) -> None:
    tried: list[float] = []

    def run(_: Path, patience: float) -> None:
        tried.append(patience)
        raise error

    with pytest.raises(error):
        run_with_retries(run, 1.0)
    assert len(tried) == n


@dataclass(frozen=True)
class Made:
    """A stand-in for `View`: times of posted packets and of batches."""

    posts: Sequence[tuple[float, bytes]]
    batched: Sequence[float]

    def posted(self, _: str) -> list[Request]:
        return [_at(seconds, body) for seconds, body in self.posts]

    def batches(self, _: str) -> list[tuple[Request, bytes]]:
        return [(_at(seconds, b""), b"") for seconds in self.batched]


def _at(seconds: float, body: bytes) -> Request:
    moment = OPENED.timestamp() + seconds
    return Request(
        moment,
        None,
        Connection(("127.0.0.1", 1), ("127.0.0.1", 2), moment),
        "POST / HTTP/1.1",
        (),
        body,
    )


IN_TIME = [(5.0, b"a"), (31.0, b"b"), (31.5, b"b")]


@pytest.mark.parametrize(
    ("posts", "batched", "is_slow"),
    [
        (IN_TIME, [32.5], False),
        (IN_TIME[:1], [32.5], True),
        ([*IN_TIME, (32.2, b"c")], [32.5], False),
        ([*IN_TIME, (32.7, b"c")], [32.5], True),
        ([*IN_TIME, (34.0, b"a")], [32.5, 36.5], True),
        (IN_TIME, [32.5, 36.5], True),
        (IN_TIME, [], True),
        # A relay that hands packets on as they come is not excused by a busy machine.
        (IN_TIME, [5.5, 32.5], False),
    ],
)
def test_check_timing_finds_late_packets_and_batches(
    posts: list[tuple[float, bytes]], batched: list[float], is_slow: bool
) -> None:
    made: Any = Made(posts, batched)
    try:
        check_timing(made, make_manifest("anonml"), WINDOW, 2)
    except TooSlowError:
        assert is_slow
    else:
        assert not is_slow
