"""Run the trials of a forecast in this process or in several.

`shoal.simulation.forecast` opens a runner and passes trials as it finds that it needs them.
Results are in the order of the trials, with any number of processes.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context, parent_process

from shoal.errors import TransportError
from shoal.simulation.engines import check_engine, delay_interrupts, exit_after, use_one_thread
from shoal.simulation.forecast.sources import PopulationSource
from shoal.simulation.forecast.trials import ForecastTrial, ForecastTrialResult, run_trial

TrialRunner = Callable[[Sequence[ForecastTrial]], list[ForecastTrialResult]]
TrialProgress = Callable[[int, int], None]
"""Callback with the number of finished trials, and of trials needed so far."""

_source: list[PopulationSource] = []


def ignore_progress(done: int, total: int) -> None:
    """Report no progress."""


@contextmanager
def open_runner(
    source: PopulationSource, jobs: int, on_progress: TrialProgress
) -> Iterator[TrialRunner]:
    """Open a function that runs trials and returns their results in order.

    Worker processes end with the context.
    """
    check_engine(jobs, "local")
    counter = _TrialCounter(on_progress)
    with use_one_thread():
        if jobs == 1:
            yield lambda trials: [
                counter.count(run_trial(trial, source)) for trial in counter.expect(trials)
            ]
            return
        pool = ProcessPoolExecutor(
            jobs, get_context("spawn"), initializer=start_trial_worker, initargs=(source,)
        )
        try:
            yield lambda trials: _run_in_pool(pool, counter.expect(trials), counter)
        except BrokenProcessPool:
            why = "Another program ended it, or the machine has no memory left."
            raise TransportError(
                "SIM-006",
                "A worker process of the simulation has ended.",
                why=why,
                fix="Try fewer --jobs.",
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


def _run_in_pool(
    pool: ProcessPoolExecutor, trials: Sequence[ForecastTrial], counter: _TrialCounter
) -> list[ForecastTrialResult]:
    return [
        counter.count(future.result())
        for future in [_submit_trial(pool, trial) for trial in trials]
    ]


def _submit_trial(pool: ProcessPoolExecutor, trial: ForecastTrial) -> Future[ForecastTrialResult]:
    # This may start a child; interrupted halfway, the pool would wait for it for ever.
    with delay_interrupts():
        return pool.submit(run_trial_in_worker, trial)


def start_trial_worker(source: PopulationSource) -> None:
    """Initialise a worker process: store the rows, ignore SIGINT, exit with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _source[:] = [source]
    parent = parent_process()
    assert parent is not None
    threading.Thread(target=exit_after, args=(parent.join,), daemon=True).start()


def run_trial_in_worker(trial: ForecastTrial) -> ForecastTrialResult:
    """Run one trial on the rows of this process."""
    return run_trial(trial, _source[0])


class _TrialCounter:
    """A count of finished and expected trials."""

    def __init__(self, on_progress: TrialProgress) -> None:
        self._on_progress, self._done, self._all = on_progress, 0, 0

    def expect(self, trials: Sequence[ForecastTrial]) -> Sequence[ForecastTrial]:
        self._all += len(trials)
        return trials

    def count(self, result: ForecastTrialResult) -> ForecastTrialResult:
        self._done += 1
        self._on_progress(self._done, self._all)
        return result
