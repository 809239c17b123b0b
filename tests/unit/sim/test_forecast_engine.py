"""Where the runs of a forecast are made: here or in processes, the same either way."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import pytest

from forecast_cases import rows_of, small
from shoal.errors import TransportError, UsageError
from shoal.sim import forecast_engine
from shoal.sim.forecast_engine import keep, runner, try_kept, untold
from shoal.sim.forecast_runs import Trial, try_once
from shoal.sim.protocols import params_for

STUDY = small("anonml")
ROWS = rows_of(STUDY, 200)
TRIALS = [Trial(params_for(STUDY), 60, 1, repeat) for repeat in range(3)]


@pytest.mark.parametrize("jobs", [1, 2])
def test_runs_come_in_their_order_and_are_counted(jobs: int) -> None:
    told: list[tuple[int, int]] = []
    with runner(ROWS, jobs, lambda done, of: told.append((done, of))) as run:
        first, second = run(TRIALS[:2]), run(TRIALS[2:])
    assert [one.scores for one in first + second] == [try_once(trial, ROWS).scores for trial in TRIALS]
    assert told == [(1, 2), (2, 2), (3, 3)]


def test_a_number_of_processes_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="--jobs 0"), runner(ROWS, 0, untold):
        pass


def test_a_process_that_has_gone_is_told_of() -> None:
    with pytest.raises(TransportError, match="SIM-006"), runner(ROWS, 2, untold):
        raise BrokenProcessPool


def test_a_process_keeps_the_rows_leaves_interruptions_alone_and_ends_with_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    gone, ended = threading.Event(), threading.Event()

    class Parent:
        def join(self) -> None:
            gone.wait()

    def leave(code: int) -> Any:
        ended.set()

    monkeypatch.setattr(forecast_engine, "parent_process", Parent)
    monkeypatch.setattr(os, "_exit", leave)
    before = signal.getsignal(signal.SIGINT)
    try:
        keep(ROWS)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert try_kept(TRIALS[0]).scores == try_once(TRIALS[0], ROWS).scores and not ended.is_set()
        gone.set()
        assert ended.wait(10)
    finally:
        signal.signal(signal.SIGINT, before)
        forecast_engine._source.clear()
    assert untold(1, 2) is None  # type: ignore[func-returns-value]
