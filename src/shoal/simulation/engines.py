"""Run tasks in this process, in several processes, or on a Dask cluster.

``simulate`` and ``compare`` call `run_all`. A run is a function of its task and of the rows, so the
result does not depend on the place or order of the runs. Linear algebra uses one thread: with
several processes, or for a measured time, more threads only wait for each other. Rows are sent to a
cluster only on this machine or over TLS.
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
from contextlib import AbstractContextManager, contextmanager, nullcontext
from multiprocessing import get_context, parent_process
from typing import Any
from urllib.parse import urlsplit

from shoal.errors import TransportError, UsageError, require_extra
from shoal.simulation.registry import run
from shoal.simulation.run import RunOutcome, RunTask, Split
from shoal.text import escape_text

CLUSTER_TIMEOUT = 10.0
"""Seconds to wait for a cluster and for its first worker."""

_LARGEST_ROWS = 1 << 40
"""Threshold for Dask's warning about large rows, which are sent to a cluster once."""

_process_split: list[Split] = []


RunCallback = Callable[[], None]
"""Callback after each run."""


def _ignore_progress() -> None:
    """Report no progress."""


def run_all(
    tasks: Sequence[RunTask],
    split: Split,
    jobs: int = 1,
    engine: str = "local",
    on_progress: RunCallback = _ignore_progress,
) -> list[RunOutcome]:
    """Run all tasks, and return their outcomes in the order of the tasks.

    Parameters
    ----------
    jobs
        Processes of this machine; 1 for this process alone.
    engine
        ``"local"``, or ``"dask:ADDRESS"`` of a cluster's scheduler, on loopback or with TLS. The
        rows are sent to it.
    on_progress
        Called in this thread after each run.
    """
    check_engine(jobs, engine)
    if engine != "local":
        return _run_on_dask(tasks, split, parse_cluster_address(engine), on_progress)
    return (
        _run_in_processes(tasks, split, jobs, on_progress)
        if jobs > 1
        else [_run_here(task, split, on_progress) for task in tasks]
    )


def _run_here(task: RunTask, split: Split, on_progress: RunCallback) -> RunOutcome:
    outcome = run(task, split)
    on_progress()
    return outcome


def check_engine(jobs: int, engine: str) -> None:
    """Raise an error for an impossible number of processes or an unusable cluster."""
    if jobs < 1:
        raise UsageError(
            "USAGE-001",
            f"--jobs {jobs} is not a number of processes.",
            fix="Give --jobs 1 or more.",
        )
    if engine == "local":
        return
    parse_cluster_address(engine)
    if jobs > 1:
        raise UsageError(
            "USAGE-001",
            "--jobs counts processes of this machine; a cluster has its own.",
            fix="Remove --jobs.",
        )
    _import_distributed()


def parse_cluster_address(engine: str) -> str:
    """Return the address of a cluster to which rows may be sent.

    Raises
    ------
    UsageError
        ``SIM-005``: the address is invalid, or its connection is not protected.

    Examples
    --------
    >>> parse_cluster_address("dask:127.0.0.1:8786")
    'tcp://127.0.0.1:8786'
    """
    kind, _, address = engine.partition(":")
    if kind != "dask":
        what = f"There is no engine {escape_text(engine[:60])}."
        raise UsageError("USAGE-001", what, fix="--engine local, or --engine dask:ADDRESS")
    try:
        parts = urlsplit(address if "://" in address else f"tcp://{address}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port = "", None
    if not host or port is None or parts.scheme not in ("tcp", "tls"):
        what = (
            f"{escape_text(address[:60])} is not the address of a cluster."
            if address
            else "--engine dask: names no cluster."
        )
        raise UsageError("SIM-005", what, fix="--engine dask:tls://host:8786")
    if parts.scheme == "tcp" and not _is_loopback(host):
        raise UsageError(
            "SIM-005",
            f"The connection to the cluster at {escape_text(host[:60])} is not protected.",
            why="The rows of --data are sent to it, and without TLS others could read and change "
            "them.",
            fix=f"Use --engine dask:tls://{escape_text(host[:60])}:{port} if the cluster is inside "
            "your trust domain, or a cluster on this machine.",
        )
    return parts.geturl()


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _run_in_processes(
    tasks: Sequence[RunTask], split: Split, jobs: int, on_progress: RunCallback
) -> list[RunOutcome]:
    pool = ProcessPoolExecutor(
        min(jobs, len(tasks)), get_context("spawn"), initializer=start_worker, initargs=(split,)
    )
    try:
        futures = [_submit_task(pool, task) for task in tasks]
        for future in as_completed(futures):
            future.result()
            on_progress()
        return [future.result() for future in futures]
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


def _submit_task(pool: ProcessPoolExecutor, task: RunTask) -> Future[RunOutcome]:
    # This may start a child; interrupted halfway, the pool would wait for it for ever.
    with delay_interrupts():
        return pool.submit(run_in_worker, task)


@contextmanager
def delay_interrupts() -> Iterator[None]:
    """Delay SIGINT and SIGTERM until the end; child processes started here get no SIGINT."""
    held: list[int] = []
    handlers = {
        kind: signal.signal(kind, lambda number, _: held.append(number))
        for kind in (signal.SIGINT, signal.SIGTERM)
    }
    # A child inherits blocked signals, but no handlers: it would report an interruption that is
    # meant for its parent.
    mask = (
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        if hasattr(signal, "pthread_sigmask")
        else None
    )
    try:
        yield
    finally:
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for kind, handler in handlers.items():
            signal.signal(kind, handler)
        for number in held:
            signal.raise_signal(number)


def start_worker(split: Split) -> None:
    """Initialise a worker process: store the rows, and exit when the parent exits."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    set_process_split(split)
    parent = parent_process()
    assert parent is not None
    threading.Thread(target=exit_after, args=(parent.join,), daemon=True).start()


def exit_after(wait_for_parent: Callable[[], None]) -> None:
    """Wait for the end of the parent, and exit."""
    wait_for_parent()
    # Without its parent a worker would wait for its next task, and keep the rows, for ever.
    os._exit(1)


def set_process_split(split: Split) -> None:
    """Store the rows for the runs of this process."""
    _process_split[:] = [split]


def run_in_worker(task: RunTask) -> RunOutcome:
    """Simulate one run on the rows of this process."""
    return run(task, _process_split[0])


def _run_on_dask(
    tasks: Sequence[RunTask], split: Split, address: str, on_progress: RunCallback
) -> list[RunOutcome]:
    distributed = _import_distributed()
    try:
        client = distributed.Client(address, timeout=CLUSTER_TIMEOUT, set_as_default=False)
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        raise _make_cluster_error(
            address,
            f"It did not answer within {CLUSTER_TIMEOUT:g} seconds, or not as a cluster does "
            f"({type(error).__name__}).",
        ) from None
    with _silence_dask(), client:
        try:
            client.wait_for_workers(1, timeout=CLUSTER_TIMEOUT)
            return _collect_outcomes(client, tasks, split, on_progress)
        except (OSError, distributed.KilledWorker, distributed.CancelledError) as error:
            raise _make_cluster_error(
                address, f"It has no workers, or they have gone ({type(error).__name__})."
            ) from None


@contextmanager
def _silence_dask() -> Iterator[None]:
    """Suppress Dask's log of lost results and connections; errors here report them."""
    logger = logging.getLogger("distributed.client")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


def _collect_outcomes(
    client: Any, tasks: Sequence[RunTask], split: Split, on_progress: RunCallback
) -> list[RunOutcome]:
    import dask

    # Scattered rows are lost with their workers. Rows that are the result of a task are computed
    # again.
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": f"{_LARGEST_ROWS}B"}):
        rows = client.submit(return_split, split, pure=False)
    futures = client.map(run, tasks, [rows] * len(tasks), pure=False)
    position = {future.key: i for i, future in enumerate(futures)}
    collected: dict[int, RunOutcome] = {}
    for future in _import_distributed().as_completed(futures, loop=client.loop):
        collected[position[future.key]] = future.result()
        on_progress()
    return [collected[i] for i in range(len(tasks))]


def return_split(split: Split) -> Split:
    """Return the rows, as the result of a task on a cluster."""
    return split


def _import_distributed() -> Any:
    require_extra("dask", "distributed", purpose="A cluster")
    import distributed

    return distributed


def _make_cluster_error(address: str, why: str) -> TransportError:
    fix = "Start dask scheduler and dask worker, with shoal installed where they run."
    return TransportError(
        "SIM-006", f"The cluster at {escape_text(address)} cannot be used.", why=why, fix=fix
    )


_LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
"""Variables that libraries read when they are loaded; values of the user are kept."""


@contextmanager
def use_one_thread() -> Iterator[None]:
    """Limit this process and its new child processes to one thread each.

    Idle threads use the processor while they wait.
    """
    set_here = [name for name in _LIMITS if name not in os.environ]
    os.environ.update(dict.fromkeys(set_here, "1"))
    try:
        with _limit_loaded_libraries():
            yield
    finally:
        for name in set_here:
            os.environ.pop(name, None)


def _limit_loaded_libraries() -> AbstractContextManager[object]:
    """Return a limit for loaded libraries, which do not read the environment again."""
    try:
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
    except ImportError:
        return nullcontext()
    return threadpool_limits(1)  # type: ignore[no-any-return]
