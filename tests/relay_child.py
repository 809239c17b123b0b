"""What a process does with a relay's spool until it is killed, or kills itself between two steps."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path

from shoal.entropy import SystemEntropy
from shoal.relay import spool as spool_module
from shoal.relay import spool_file
from shoal.relay.spool import Sealed, Spool
from shoal.study.anonymity import Window

STUDY = "5" * 64
WINDOW = Window(datetime(2030, 1, 1, tzinfo=UTC), datetime(2030, 1, 2, tzinfo=UTC))
STEPS = ("putting", "put", "settling", "settled", "delivered", "dropping", "dropped")
"""After which a process can die. In those that end in -ing a transaction is open, and is never committed."""


REFUSED_STEPS = ("returning", "returned", "settling again", "settled again")
"""The same of a relay whose batch is refused."""


def packet(i: int) -> bytes:
    return i.to_bytes(4, "big") * 100


def number(sealed: bytes) -> int:
    return int.from_bytes(sealed[:4], "big")


def _die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def nursery(link: Connection) -> None:
    """Children of this process, which do what they are told until they are dead: the name of their work, and what it is given."""
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
    """Be killed at the end of the next transaction, all of which is written but that it is done."""

    class Dying:
        def __init__(self, db: object) -> None:
            self._db = db

        def __getattr__(self, name: str) -> object:
            return getattr(self._db, name)

        def execute(self, statement: str, *values: object) -> object:
            if statement == "COMMIT":
                _die()
            return self._db.execute(statement, *values)  # type: ignore[attr-defined]

    right = spool_file.transaction
    spool_module.transaction = lambda db: right(Dying(db))  # type: ignore[arg-type,assignment]


def once(path: Path, die_after: str, link: Connection) -> None:
    """A round of a relay's life with ten packets, which ends by its death at a step."""
    with Spool(path, SystemEntropy()) as spool:
        spool.keep_phase(STUDY, 0, WINDOW)
        for step in STEPS:
            if step == die_after and step.endswith("ing"):
                _die_in_transaction()
            match step:
                case "put":
                    pass
                case "putting":
                    spool.put([Sealed(STUDY, 0, packet(i), 100) for i in range(10)])
                    link.send(("kept", 10))
                case "settling":
                    assert spool.settle(STUDY, 0, 1, 5, 4) == 10
                case "settled" | "dropped":
                    pass
                case "delivered":
                    for part in spool.parts(STUDY):
                        for one in spool.part(STUDY, part):
                            link.send(("delivered", number(one)))
                case "dropping":
                    for part in spool.parts(STUDY):
                        spool.drop_part(STUDY, part)
            if step == die_after:
                _die()


def refused(path: Path, die_after: str, link: Connection) -> None:
    """A batch of ten packets is refused, for the last five, which are rubbish; what is left goes again."""
    with Spool(path, SystemEntropy()) as spool:
        spool.keep_phase(STUDY, 0, WINDOW)
        spool.put([Sealed(STUDY, 0, packet(i), 100) for i in range(10)])
        spool.settle(STUDY, 0, 1, 5, 100)
        link.send(("kept", 10))
        for step in REFUSED_STEPS:
            if step == die_after and step in ("returning", "settling again"):
                _die_in_transaction()
            if step == "returning":
                spool.return_part(STUDY, 0, [packet(i) for i in range(5, 10)])
            elif step == "settling again":
                assert spool.settle_again(STUDY, 100) == 5
            if step == die_after:
                _die()


def without_end(path: Path, first: int, link: Connection) -> None:
    """Keep packets, release them in batches, and delete what was delivered; each step is told."""
    with Spool(path, SystemEntropy()) as spool:
        spool.keep_phase(STUDY, first, WINDOW)
        i, settled = first, 0
        while True:
            link.send(("asked", i))
            spool.put([Sealed(STUDY, first, packet(i + j), 10**9) for j in range(3)])
            link.send(("kept", i))
            i += 3
            settled += 1
            if settled % 3 == 0:
                spool.tidy()
            spool.settle(STUDY, first, settled, 1, 2)
            for part in spool.parts(STUDY):
                for one in spool.part(STUDY, part):
                    link.send(("delivered", number(one)))
                spool.drop_part(STUDY, part)
                link.send(("dropped", part))
