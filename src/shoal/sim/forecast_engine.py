"""Where the runs of a forecast are carried out: in this process, or in several, one after another as they are found to be needed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context, parent_process

from shoal.errors import TransportError
from shoal.sim.comparing_threads import one_thread
from shoal.sim.engines import check_engine, end_after, interruptions_held
from shoal.sim.forecast_rows import Source
from shoal.sim.forecast_runs import Trial, Tried, try_once

Runner = Callable[[Sequence[Trial]], list[Tried]]
Told = Callable[[int, int], None]
"""Is told how many runs are made, and of how many that are known to be needed."""

_source: list[Source] = []


def untold(done: int, of: int) -> None:
    """Tell nobody."""


@contextmanager
def runner(source: Source, jobs: int, told: Told) -> Iterator[Runner]:
    """A function that makes runs and gives what came of them in their order; processes live as long as the context does."""
    check_engine(jobs, "local")
    counter = _Counter(told)
    with one_thread():
        if jobs == 1:
            yield lambda trials: [counter.count(try_once(trial, source)) for trial in counter.expect(trials)]
            return
        pool = ProcessPoolExecutor(jobs, get_context("spawn"), initializer=keep, initargs=(source,))
        try:
            yield lambda trials: _in_pool(pool, counter.expect(trials), counter)
        except BrokenProcessPool:
            why = "It was ended from outside, or there was no memory left."
            raise TransportError("SIM-006", "A process that simulates has gone.", why=why, fix="Try fewer --jobs.") from None
        finally:
            pool.shutdown(cancel_futures=True)


def _in_pool(pool: ProcessPoolExecutor, trials: Sequence[Trial], counter: _Counter) -> list[Tried]:
    return [counter.count(future.result()) for future in [_submitted(pool, trial) for trial in trials]]


def _submitted(pool: ProcessPoolExecutor, trial: Trial) -> Future[Tried]:
    with interruptions_held():  # a child may be started, and half a child would be waited for in vain
        return pool.submit(try_kept, trial)


def keep(source: Source) -> None:
    """What a process does first: keep the rows, leave interruptions to its parent, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _source[:] = [source]
    parent = parent_process()
    assert parent is not None
    threading.Thread(target=end_after, args=(parent.join,), daemon=True).start()


def try_kept(trial: Trial) -> Tried:
    """One run on the rows of this process."""
    return try_once(trial, _source[0])


class _Counter:
    """Counts runs that are made and runs that are to be made."""

    def __init__(self, told: Told) -> None:
        self._told, self._done, self._all = told, 0, 0

    def expect(self, trials: Sequence[Trial]) -> Sequence[Trial]:
        self._all += len(trials)
        return trials

    def count(self, tried: Tried) -> Tried:
        self._done += 1
        self._told(self._done, self._all)
        return tried
