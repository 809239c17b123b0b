"""shoal with faults: ``altered.py FAULT=VALUE... MODULE ARGUMENTS...``, as its own process.

``clock=FILE``
    The clock is ahead by the seconds in a file, which may change while the process runs.
``file=BYTES``
    The process can write no larger files.
``read=SECONDS``, ``answer=SECONDS``
    The server waits that long for a request, the client for a response.
``spam=all``
    The coordinator merges each update that has the right form.
``die=POINT:N``
    The process ends with SIGKILL when the function of a point has returned for the n-th time.

Most points are completed steps: with ``die=stored:2`` the process dies when the second answer is
stored. In ``appending`` and ``saving step`` a transaction is open and is never committed.

Each replaced name must exist. Otherwise a renamed function would leave a fault without effect.
"""

from __future__ import annotations

import math
import os
import resource
import runpy
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any

from shoal.clock import SystemClock
from shoal.coordinator.supervisor import Supervisor
from shoal.protocols.ddml.spam_filter import SpamThresholds
from shoal.study import ddml
from shoal.transport import client, connections

Points = dict[str, list[tuple[Any, str]]]
"""Names of points, each with the functions that reach it, as owner and name."""


def participant_points() -> Points:
    """Return the points of ``shoal join`` and of a fleet."""
    from shoal.mpyc.runner import MPyCWorkers
    from shoal.participant import delivery, ledger_file
    from shoal.participant.journal import Journal

    return {
        "reserved": [(ledger_file.LedgerFile, "reserve")],
        "stored": [(ledger_file.LedgerFile, "store")],
        "sending": [(ledger_file.LedgerFile, "mark_sending")],
        "delivered": [
            (delivery.SignedDelivery, "send"),
            (delivery.AnonymousDelivery, "send"),
            (delivery.DDMLDelivery, "send"),
        ],
        "sent": [(ledger_file.LedgerFile, "mark_sent")],
        "appending": [(ledger_file, "append_record")],
        "enrolled": [(Journal, "record_enrolment")],
        "state saved": [(Journal, "save")],
        "computing": [(MPyCWorkers, "begin")],
    }


def coordinator_points() -> Points:
    """Return the points of ``shoal serve``."""
    from shoal.coordinator.ddml.instances.sqlite import SqliteInstanceStore
    from shoal.coordinator.store import sql, sqlite

    return {
        "accepted": [(sql.SqlStore, "accept")],
        "name used": [(sql.SqlStore, "use_names")],
        "merged": [(SqliteInstanceStore, "merge_many")],
        "admitted": [(sql.SqlStore, "enrol"), (sql.SqlStore, "register")],
        "leased": [(sql.SqlStore, "lease")],
        "step saved": [(sql.SqlStore, "save")],
        "saving step": [(sqlite._SqliteSession, "execute_many")],
    }


def relay_points() -> Points:
    """Return the points of ``shoal relay``."""
    from shoal.relay.client import CoordinatorClient
    from shoal.relay.spool import Spool

    return {
        "packets stored": [(Spool, "put")],
        "batch made": [(Spool, "make_batch")],
        "batch sent": [(CoordinatorClient, "send_batch")],
        "part dropped": [(Spool, "drop_part")],
    }


def replace(owner: Any, name: str, value: object) -> None:
    """Replace a name that its owner has."""
    assert name in vars(owner), f"{owner.__name__} has no {name}"
    setattr(owner, name, value)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def make_deadly(function: Callable[..., Any], calls: list[int], n: int) -> Callable[..., Any]:
    """Return a function that kills the process when the n-th of all calls has returned."""

    def is_last() -> bool:
        calls.append(1)
        return len(calls) == n

    @wraps(function)
    async def call_async(*arguments: Any, **options: Any) -> Any:
        result = await function(*arguments, **options)
        if is_last():
            die()
        return result

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        result = function(*arguments, **options)
        if is_last():
            die()
        return result

    return call_async if function.__code__.co_flags & 0x80 else call


def die_after(point: str, n: int) -> None:
    points = {**participant_points(), **coordinator_points(), **relay_points()}
    calls: list[int] = []
    for owner, name in points[point]:
        replace(owner, name, make_deadly(getattr(owner, name), calls, n))


def follow_clock(file: Path) -> None:
    """Set the clock ahead by the seconds that the file contains at each moment."""
    real_now, real_time = SystemClock.now, time.time

    def seconds() -> float:
        return float(file.read_text())

    replace(SystemClock, "now", lambda self: real_now(self) + timedelta(seconds=seconds()))
    # uvicorn takes the Date of its responses from here.
    replace(time, "time", lambda: real_time() + seconds())


def accept_all_updates() -> None:
    """Accept all updates: some honest ones look like spam by chance, and tests count all."""
    replace(ddml, "calibrate_thresholds", lambda *_: SpamThresholds(math.inf, math.inf))


def main() -> None:
    n = next(i for i, word in enumerate(sys.argv[1:], start=1) if "=" not in word)
    faults, arguments = sys.argv[1:n], sys.argv[n:]
    for fault in faults:
        kind, _, value = fault.partition("=")
        match kind:
            case "clock":
                follow_clock(Path(value))
            case "file":
                resource.setrlimit(resource.RLIMIT_FSIZE, (int(value), resource.RLIM_INFINITY))
            case "read":
                replace(connections, "READ_SECONDS", float(value))
            case "answer":
                replace(client, "_TIMEOUTS", {**client._TIMEOUTS, "read": float(value)})
            case "spam":
                accept_all_updates()
            case "die":
                point, _, times = value.partition(":")
                die_after(point, int(times))
            case _:
                raise SystemExit(f"there is no fault {kind}")
    # Workers are separate processes and need the same faults.
    replace(Supervisor, "command", (sys.executable, __file__, *faults, "shoal.coordinator.worker"))
    sys.argv = arguments
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
