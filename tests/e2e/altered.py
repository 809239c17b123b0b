"""shoal as a process to which something is done: ``altered.py WHAT=VALUE... MODULE ARGUMENTS...``.

``clock=FILE``: its clock is ahead by the seconds in a file, which may change while it runs. ``file=BYTES``: it can write no larger files.
``read=SECONDS``: it waits for requests for so long. ``answer=SECONDS``: it waits for answers for so long. ``spam=all``: it merges whatever
has the right form. ``die=POINT:N``: it ends itself by SIGKILL at a point.

A point is a step that is done (``die=stored:2``: when the second answer is stored), or one that is half done: in ``writing`` and
``folding`` a transaction is open, and is never committed.
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
from shoal.participant import asking
from shoal.protocols.ddml.spam import Thresholds
from shoal.study import ddml
from shoal.transport import connections


def _points() -> dict[str, list[tuple[Any, str]]]:
    """Names of points, and the functions after whose n-th call they are."""
    from shoal.mpc.children import Children
    from shoal.participant import ledger_file, wires
    from shoal.participant.journal import Journal

    return {
        "reserved": [(ledger_file.LedgerFile, "reserve")],
        "stored": [(ledger_file.LedgerFile, "store")],
        "sending": [(ledger_file.LedgerFile, "mark_sending")],
        "delivered": [(wires.Named, "deliver"), (wires.Anonymous, "deliver"), (wires.Device, "deliver")],
        "sent": [(ledger_file.LedgerFile, "mark_sent")],
        "writing": [(ledger_file, "append")],
        "enrolled": [(Journal, "enrolled")],
        "saved": [(Journal, "save")],
        "computing": [(Children, "begin")],
    }


def _coordinator_points() -> dict[str, list[tuple[Any, str]]]:
    from shoal.coordinator.models.sqlite import SqliteModels
    from shoal.coordinator.store import sql, sqlite

    return {
        "accepted": [(sql.SqlStore, "accept")],
        "used": [(sql.SqlStore, "use_many")],
        "merged": [(SqliteModels, "merge_many")],
        "admitted": [(sql.SqlStore, "enrol"), (sql.SqlStore, "register")],
        "leased": [(sql.SqlStore, "lease")],
        "folded": [(sql.SqlStore, "save")],
        "folding": [(sqlite._SqliteSession, "change_many")],
    }


def _relay_points() -> dict[str, list[tuple[Any, str]]]:
    from shoal.relay.remote import Remote
    from shoal.relay.spool import Spool

    return {
        "kept": [(Spool, "put")],
        "parted": [(Spool, "settle")],
        "handed over": [(Remote, "deliver")],
        "cleared": [(Spool, "drop_part")],
    }


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _dying(function: Callable[..., Any], calls: list[int], n: int) -> Callable[..., Any]:
    def is_last() -> bool:
        calls.append(1)
        return len(calls) == n

    @wraps(function)
    async def later(*arguments: Any, **named: Any) -> Any:
        answer = await function(*arguments, **named)
        if is_last():
            _die()
        return answer

    @wraps(function)
    def now(*arguments: Any, **named: Any) -> Any:
        answer = function(*arguments, **named)
        if is_last():
            _die()
        return answer

    return later if function.__code__.co_flags & 0x80 else now


def die_after(point: str, n: int) -> None:
    points = {**_points(), **_coordinator_points(), **_relay_points()}
    calls: list[int] = []
    for owner, name in points[point]:
        setattr(owner, name, _dying(getattr(owner, name), calls, n))


def follow_clock(file: Path) -> None:
    """Have a clock that is ahead by what the file says at this moment."""
    right, right_seconds = SystemClock.now, time.time

    def seconds() -> float:
        return float(file.read_text())

    SystemClock.now = lambda self: right(self) + timedelta(seconds=seconds())  # type: ignore[method-assign]
    # uvicorn dates its answers by this one.
    time.time = lambda: right_seconds() + seconds()


def refuse_no_spam() -> None:
    """Some honest updates look like spam, by chance, and are dropped: here all are to be counted."""
    ddml.calibrate = lambda *_: Thresholds(math.inf, math.inf)  # type: ignore[attr-defined]


def main() -> None:
    n = next(i for i, word in enumerate(sys.argv[1:], start=1) if "=" not in word)
    alterations, arguments = sys.argv[1:n], sys.argv[n:]
    for alteration in alterations:
        what, _, value = alteration.partition("=")
        match what:
            case "clock":
                follow_clock(Path(value))
            case "file":
                resource.setrlimit(resource.RLIMIT_FSIZE, (int(value), resource.RLIM_INFINITY))
            case "read":
                connections.READ_SECONDS = float(value)
            case "answer":
                asking._SECONDS["read"] = float(value)
            case "spam":
                refuse_no_spam()
            case "die":
                point, _, times = value.partition(":")
                die_after(point, int(times))
    # Workers are processes of their own, and are to be like their parent.
    Supervisor.command = (sys.executable, __file__, *alterations, "shoal.coordinator.worker")
    sys.argv = arguments
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
