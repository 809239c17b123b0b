"""Child processes that use a relay's spool until they are killed or kill themselves."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path

from shoal.entropy import SystemEntropy
from shoal.relay import spool as spool_module
from shoal.relay.spool import SealedPacket, Spool
from shoal.sqlite import transaction
from shoal.study.schedule import PhaseWindow

STUDY = "5" * 64
WINDOW = PhaseWindow(datetime(2030, 1, 1, tzinfo=UTC), datetime(2030, 1, 2, tzinfo=UTC))
STEPS = ("putting", "put", "settling", "settled", "delivered", "dropping", "dropped")
"""Steps after which a process can die. In those that end in -ing a transaction is open and is
never committed.
"""


REFUSED_STEPS = ("returning", "returned", "settling again", "settled again")
"""Steps of a relay with a rejected batch."""


def packet(i: int) -> bytes:
    return i.to_bytes(4, "big") * 100


def number(sealed: bytes) -> int:
    return int.from_bytes(sealed[:4], "big")


def _die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def nursery(link: Connection) -> None:
    """Run child processes: receive the name of a function with arguments, until killed."""
    while True:
        work, *arguments = link.recv()
        pid = os.fork()
        if pid == 0:
            {"once": once, "refused": refused, "without_end": without_end}[work](*arguments, link)
            os._exit(0)
        link.send(("born", pid))
        os.waitpid(pid, 0)
        link.send(("dead", pid))


def _die_in_transaction() -> None:
    """Replace transactions by ones that kill the process right before COMMIT."""

    class Dying:
        def __init__(self, db: object) -> None:
            self._db = db

        def __getattr__(self, name: str) -> object:
            return getattr(self._db, name)

        def execute(self, statement: str, *values: object) -> object:
            if statement == "COMMIT":
                _die()
            return self._db.execute(statement, *values)  # type: ignore[attr-defined]

    spool_module.transaction = lambda db: transaction(Dying(db))  # type: ignore[arg-type,assignment]


def once(path: Path, die_after: str, link: Connection) -> None:
    """Run one cycle of a relay with ten packets; die at a step."""
    with Spool(path, SystemEntropy()) as spool:
        spool.record_phase(STUDY, 0, WINDOW)
        for step in STEPS:
            if step == die_after and step.endswith("ing"):
                _die_in_transaction()
            match step:
                case "put":
                    pass
                case "putting":
                    spool.put([SealedPacket(STUDY, 0, packet(i), 100) for i in range(10)])
                    link.send(("kept", 10))
                case "settling":
                    assert spool.make_batch(STUDY, 0, 1, 5, 4) == 10
                case "settled" | "dropped":
                    pass
                case "delivered":
                    for part in spool.list_parts(STUDY):
                        for one in spool.read_part(STUDY, part):
                            link.send(("delivered", number(one)))
                case "dropping":
                    for part in spool.list_parts(STUDY):
                        spool.drop_part(STUDY, part)
            if step == die_after:
                _die()


def refused(path: Path, die_after: str, link: Connection) -> None:
    """Reject a batch for its last five packets, and resend the other five; die at a step."""
    with Spool(path, SystemEntropy()) as spool:
        spool.record_phase(STUDY, 0, WINDOW)
        spool.put([SealedPacket(STUDY, 0, packet(i), 100) for i in range(10)])
        spool.make_batch(STUDY, 0, 1, 5, 100)
        link.send(("kept", 10))
        for step in REFUSED_STEPS:
            if step == die_after and step in ("returning", "settling again"):
                _die_in_transaction()
            if step == "returning":
                spool.return_part(STUDY, 0, [packet(i) for i in range(5, 10)])
            elif step == "settling again":
                assert spool.make_resend_batch(STUDY, 100) == 5
            if step == die_after:
                _die()


def without_end(path: Path, first: int, link: Connection) -> None:
    """Store packets, release batches and delete delivered ones without end; report each step."""
    with Spool(path, SystemEntropy()) as spool:
        spool.record_phase(STUDY, first, WINDOW)
        i, settled = first, 0
        while True:
            link.send(("asked", i))
            spool.put([SealedPacket(STUDY, first, packet(i + j), 10**9) for j in range(3)])
            link.send(("kept", i))
            i += 3
            settled += 1
            if settled % 3 == 0:
                spool.rewrite_sorted()
            spool.make_batch(STUDY, first, settled, 1, 2)
            for part in spool.list_parts(STUDY):
                for one in spool.read_part(STUDY, part):
                    link.send(("delivered", number(one)))
                spool.drop_part(STUDY, part)
                link.send(("dropped", part))
