"""Which studies are tried again since a machine was too busy for them, and which are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from capture import Connection
from captured_http import Request
from e2e.anonymous import N_ATTEMPTS, TooSlowError, in_time
from e2e.test_anonymous_ohttp import check_in_time
from participants import manifest_of
from shoal.study.anonymity import Window

OPENED = datetime(2030, 1, 1, tzinfo=UTC)
WINDOW = Window(OPENED, OPENED + timedelta(seconds=40))


def test_the_window_grows_until_it_is_long_enough() -> None:
    tried: list[float] = []

    def run(home: Path, patience: float) -> str:
        assert list(home.iterdir()) == []
        (home / "file").touch()
        tried.append(patience)
        if len(tried) < N_ATTEMPTS:
            raise TooSlowError
        return "done"

    assert in_time(run, 40.0) == "done" and tried == [40.0, 80.0, 160.0]


@pytest.mark.parametrize(("error", "n"), [(TooSlowError, N_ATTEMPTS), (AssertionError, 1)])
def test_the_last_attempt_and_whatever_is_no_matter_of_speed_fail(error: type[Exception], n: int) -> None:
    tried: list[float] = []

    def run(_: Path, patience: float) -> None:
        tried.append(patience)
        raise error

    with pytest.raises(error):
        in_time(run, 1.0)
    assert len(tried) == n


@dataclass(frozen=True)
class Made:
    """As much of a `View` as is looked at: packets by when they were posted, and when each batch came."""

    posts: Sequence[tuple[float, bytes]]
    batched: Sequence[float]

    def posted(self, _: str) -> list[Request]:
        return [_at(seconds, body) for seconds, body in self.posts]

    def batches(self, _: str) -> list[tuple[Request, bytes]]:
        return [(_at(seconds, b""), b"") for seconds in self.batched]


def _at(seconds: float, body: bytes) -> Request:
    moment = OPENED.timestamp() + seconds
    return Request(moment, None, Connection(("127.0.0.1", 1), ("127.0.0.1", 2), moment), "POST / HTTP/1.1", (), body)


IN_TIME = [(5.0, b"a"), (27.0, b"b"), (27.5, b"b")]


@pytest.mark.parametrize(
    ("posts", "batched", "is_slow"),
    [
        (IN_TIME, [28.5], False),
        (IN_TIME[:1], [28.5], True),
        ([*IN_TIME, (28.2, b"c")], [28.5], False),
        ([*IN_TIME, (28.7, b"c")], [28.5], True),
        ([*IN_TIME, (31.0, b"a")], [28.5, 36.5], True),
        (IN_TIME, [28.5, 36.5], True),
        (IN_TIME, [], True),
        # A relay that hands packets on as they come is not excused by a busy machine.
        (IN_TIME, [5.5, 28.5], False),
    ],
)
def test_what_is_too_slow(posts: list[tuple[float, bytes]], batched: list[float], is_slow: bool) -> None:
    made: Any = Made(posts, batched)
    try:
        check_in_time(made, manifest_of("anonml"), WINDOW, 2)
    except TooSlowError:
        assert is_slow
    else:
        assert not is_slow
