"""Where runs are carried out: in this process, in several, or on a Dask cluster inside the same trust domain.

A run is a function of its task and of the rows, so that the result is the same wherever and in whatever order runs are carried out.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from typing import Any
from urllib.parse import urlsplit

from shoal.errors import TransportError, UsageError
from shoal.names import shown
from shoal.sim.protocols import run
from shoal.sim.runs import Outcome, Split, Task

PATIENCE = 10.0
"""Seconds to wait for a cluster and for its first worker."""

_LARGEST_ROWS = 1 << 40
"""Bytes of rows of which a cluster warns: it is told of them once, and there is no way around it."""

_adopted: list[Split] = []


Done = Callable[[], None]
"""What is called after each run."""


def _nothing() -> None:
    """Nobody waits for news."""


def run_all(tasks: Sequence[Task], split: Split, jobs: int = 1, engine: str = "local", done: Done = _nothing) -> list[Outcome]:
    """Carry out all runs, and give their outcomes in the order of the tasks.

    Parameters
    ----------
    tasks, split
        What to run, on which rows.
    jobs
        Processes of this machine; 1 for none but this one.
    engine
        ``"local"``, or ``"dask:ADDRESS"`` of a cluster's scheduler, on loopback or with TLS: the rows travel to it.
    done
        Called in this thread whenever one more run has come to its end.
    """
    check_engine(jobs, engine)
    if engine != "local":
        return _on_dask(tasks, split, address_of(engine), done)
    return _in_processes(tasks, split, jobs, done) if jobs > 1 else [_here(task, split, done) for task in tasks]


def _here(task: Task, split: Split, done: Done) -> Outcome:
    outcome = run(task, split)
    done()
    return outcome


def check_engine(jobs: int, engine: str) -> None:
    """Refuse what cannot be carried out, before anything is."""
    if jobs < 1:
        raise UsageError("USAGE-001", f"--jobs {jobs} leaves nobody to do the work.", fix="--jobs 1, or more.")
    if engine == "local":
        return
    address_of(engine)
    if jobs > 1:
        raise UsageError("USAGE-001", "--jobs counts processes of this machine; a cluster has its own.", fix="Leave --jobs out.")
    _distributed()


def address_of(engine: str) -> str:
    """The address of a cluster that may be given rows.

    Examples
    --------
    >>> address_of("dask:127.0.0.1:8786")
    'tcp://127.0.0.1:8786'
    """
    kind, _, address = engine.partition(":")
    if kind != "dask":
        what = f"There is no engine {shown(engine[:60])}."
        raise UsageError("USAGE-001", what, fix="--engine local, or --engine dask:ADDRESS")
    try:
        parts = urlsplit(address if "://" in address else f"tcp://{address}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port = "", None
    if not host or port is None or parts.scheme not in ("tcp", "tls"):
        what = f"{shown(address[:60])} is not the address of a cluster." if address else "--engine dask: names no cluster."
        raise UsageError("SIM-005", what, fix="--engine dask:tls://host:8786")
    if parts.scheme == "tcp" and not _is_loopback(host):
        raise UsageError(
            "SIM-005",
            f"The cluster at {shown(host[:60])} is not given any rows.",
            why="The rows of --data travel to it, and without TLS anyone on the way could read and change them.",
            fix=f"--engine dask:tls://{shown(host[:60])}:{port}, if it is inside your own trust domain, or a cluster on this machine.",
        )
    return parts.geturl()


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _in_processes(tasks: Sequence[Task], split: Split, jobs: int, done: Done) -> list[Outcome]:
    pool = ProcessPoolExecutor(min(jobs, len(tasks)), get_context("spawn"), initializer=serve, initargs=(split,))
    try:
        futures = [_submitted(pool, task) for task in tasks]
        for future in as_completed(futures):
            future.result()
            done()
        return [future.result() for future in futures]
    except BrokenProcessPool:
        why = "It was ended from outside, or there was no memory left."
        raise TransportError("SIM-006", "A process that simulates has gone.", why=why, fix="Try fewer --jobs.") from None
    finally:
        pool.shutdown(cancel_futures=True)


def _submitted(pool: ProcessPoolExecutor, task: Task) -> Future[Outcome]:
    with interruptions_held():  # a child may be started, and half a child would be waited for in vain
        return pool.submit(run_adopted, task)


@contextmanager
def interruptions_held() -> Iterator[None]:
    """Hold interruptions until the end, where they are obeyed; a process that is started meanwhile gets none from the keyboard."""
    held: list[int] = []
    handlers = {one: signal.signal(one, lambda number, _: held.append(number)) for one in (signal.SIGINT, signal.SIGTERM)}
    # A child inherits what is blocked, but no handler: it would speak of an interruption that is for its parent to obey.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if hasattr(signal, "pthread_sigmask") else None
    try:
        yield
    finally:
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for one, handler in handlers.items():
            signal.signal(one, handler)
        for number in held:
            signal.raise_signal(number)


def serve(split: Split) -> None:
    """What a process that simulates does first: keep the rows, and see to it that they do not outlive whoever gave them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    adopt(split)
    parent = parent_process()
    assert parent is not None
    threading.Thread(target=end_after, args=(parent.join,), daemon=True).start()


def end_after(gone: Callable[[], None]) -> None:
    """Wait until the parent has gone, however it ended, and end this process with it."""
    gone()
    # Nobody is left to take a result; a worker that waits for its next task would wait, and hold the rows, for ever.
    os._exit(1)


def adopt(split: Split) -> None:
    """Keep the rows for the runs of this process."""
    _adopted[:] = [split]


def run_adopted(task: Task) -> Outcome:
    """One run on the rows of this process."""
    return run(task, _adopted[0])


def _on_dask(tasks: Sequence[Task], split: Split, address: str, done: Done) -> list[Outcome]:
    distributed = _distributed()
    try:
        client = distributed.Client(address, timeout=PATIENCE, set_as_default=False)
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        raise _unreachable(
            address, f"It did not answer within {PATIENCE:g} seconds, or not as a cluster does ({type(error).__name__})."
        ) from None
    with _quiet(), client:
        try:
            client.wait_for_workers(1, timeout=PATIENCE)
            return _outcomes(client, tasks, split, done)
        except (OSError, distributed.KilledWorker, distributed.CancelledError) as error:
            raise _unreachable(address, f"It has no workers, or they have gone ({type(error).__name__}).") from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Dask tells of every result that has to be made again, and of a scheduler that has gone; we say it in words of our own, if at all."""
    logger = logging.getLogger("distributed.client")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


def _outcomes(client: Any, tasks: Sequence[Task], split: Split, done: Done) -> list[Outcome]:
    import dask

    # Rows that are scattered are gone with the workers that hold them. Those that a task gives are made again wherever they are missed.
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": f"{_LARGEST_ROWS}B"}):
        rows = client.submit(held, split, pure=False)
    futures = client.map(run, tasks, [rows] * len(tasks), pure=False)
    place = {future.key: i for i, future in enumerate(futures)}
    found: dict[int, Outcome] = {}
    for future in _distributed().as_completed(futures, loop=client.loop):
        found[place[future.key]] = future.result()
        done()
    return [found[i] for i in range(len(tasks))]


def held(split: Split) -> Split:
    """The rows, as what a worker of a cluster has worked out."""
    return split


def _distributed() -> Any:
    try:
        import distributed
    except ImportError:
        raise UsageError("USAGE-002", "A cluster needs Dask, which is not installed.", fix="pip install 'shoal[dask]'") from None
    return distributed


def _unreachable(address: str, why: str) -> TransportError:
    fix = "Start dask scheduler and dask worker, with shoal installed where they run."
    return TransportError("SIM-006", f"The cluster at {shown(address)} cannot be used.", why=why, fix=fix)
