"""Processes of a forecast: the same trials in one process or several."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import pytest

from shoal.errors import TransportError, UsageError
from shoal.simulation.forecast import engine
from shoal.simulation.forecast.engine import (
    ignore_progress,
    open_runner,
    run_trial_in_worker,
    start_trial_worker,
)
from shoal.simulation.forecast.trials import ForecastTrial, run_trial
from shoal.simulation.registry import make_simulation_params
from tests.support.simulation import make_rows, small

STUDY = small("anonml")
ROWS = make_rows(STUDY, 200)
TRIALS = [ForecastTrial(make_simulation_params(STUDY), 60, 1, repeat) for repeat in range(3)]


@pytest.mark.parametrize("jobs", [1, 2])
def test_trials_come_in_order_and_are_counted(jobs: int) -> None:
    told: list[tuple[int, int]] = []
    with open_runner(ROWS, jobs, lambda done, of: told.append((done, of))) as run:
        first, second = run(TRIALS[:2]), run(TRIALS[2:])
    assert [one.scores for one in first + second] == [
        run_trial(trial, ROWS).scores for trial in TRIALS
    ]
    assert told == [(1, 2), (2, 2), (3, 3)]


def test_invalid_number_of_processes_is_rejected() -> None:
    with pytest.raises(UsageError, match="--jobs 0"), open_runner(ROWS, 0, ignore_progress):
        pass


def test_dead_process_is_reported() -> None:
    with pytest.raises(TransportError, match="SIM-006"), open_runner(ROWS, 2, ignore_progress):
        raise BrokenProcessPool


def test_worker_keeps_rows_ignores_interruptions_and_ends_with_its_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone, ended = threading.Event(), threading.Event()

    class Parent:
        def join(self) -> None:
            gone.wait()

    def leave(code: int) -> Any:
        ended.set()

    monkeypatch.setattr(engine, "parent_process", Parent)
    monkeypatch.setattr(os, "_exit", leave)
    before = signal.getsignal(signal.SIGINT)
    try:
        start_trial_worker(ROWS)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert (
            run_trial_in_worker(TRIALS[0]).scores == run_trial(TRIALS[0], ROWS).scores
            and not ended.is_set()
        )
        gone.set()
        assert ended.wait(10)
    finally:
        signal.signal(signal.SIGINT, before)
        engine._source.clear()
    assert ignore_progress(1, 2) is None  # type: ignore[func-returns-value]
