"""Child processes of the ledger's crash tests: the cycle of a participant, fast or in steps."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from shoal.clock import SystemClock
from shoal.entropy import SystemEntropy
from shoal.errors import BudgetError, ShoalError
from shoal.mechanisms.laplace import DiscreteLaplace
from shoal.mechanisms.sensitivity import CellCounts
from shoal.participant.ledger_file import LedgerFile, ReservedRelease
from shoal.privacy.events import LOCAL_PERSON, Event, Relation, Scope, Unit
from shoal.privacy.ledger.limits import Limit
from shoal.privacy.ledger.records import ReleaseState

STUDY = "5" * 64
NOISE = DiscreteLaplace(
    0.25, CellCounts(), Scope(Unit.RECORD, Relation.ADD_REMOVE, "all who read the release")
)
TRUE_COUNTS = np.arange(64)

Pause = Callable[[str], None]


def draw() -> bytes:
    return NOISE.randomise_many(TRUE_COUNTS, SystemEntropy()).astype("<i8").tobytes()


def reserve(ledger: LedgerFile, question: str) -> object:
    return ledger.reserve(
        STUDY,
        question,
        NOISE.event(),
        source="clinic.csv",
        recipient="https://study.example",
        title="Sleep",
    )


def send(network: Path, question: str, payload: bytes, pause: Pause) -> None:
    """Append a payload to the network file in two pieces, each synchronised to the disk."""
    line = f"{question} {payload.hex()}\n".encode()
    with network.open("ab") as file:
        for piece in (line[:40], line[40:]):
            file.write(piece)
            file.flush()
            os.fsync(file.fileno())
            pause("half delivered" if piece == line[:40] else "delivered")


def cycle(ledger: LedgerFile, network: Path, question: str, pause: Pause) -> None:
    """Run all steps of a participant for one question; also resume after a crash."""
    pause("begun")
    asked = reserve(ledger, question)
    pause("reserved")
    if isinstance(asked, ReservedRelease):
        payload = draw()
        pause("drawn")
        ledger.store(STUDY, question, payload)
        pause("stored")
    payload = ledger.mark_sending(STUDY, question)
    pause("sending")
    send(network, question, payload, pause)
    ledger.mark_sent(STUDY, question)
    pause("sent")


def step_by_step(path: Path, network: Path, question: str, link: Connection) -> None:
    """Run one cycle, and wait at each point for permission to continue."""

    def pause(point: str) -> None:
        link.send(point)
        link.recv()

    with LedgerFile(path, SystemClock()) as ledger:
        cycle(ledger, network, question, pause)
    link.send("end")


def as_fast_as_it_can(path: Path, network: Path, link: Connection) -> None:
    """Finish pending questions, then answer new ones without end; report each step."""
    with LedgerFile(path, SystemClock()) as ledger:
        for entry in ledger.list_pending():
            cycle(ledger, network, entry.release.question, link.send)
        for i in range(len(ledger.entries()), 10**9):
            cycle(ledger, network, f"q{i}", link.send)


def churn(path: Path, link: Connection) -> None:
    """Run large transactions without end: store and delete bytes, and set limits."""
    with LedgerFile(path, SystemClock()) as ledger:
        for i in range(len(ledger.entries()), 10**9):
            reserve(ledger, f"q{i}")
            ledger.store(STUDY, f"q{i}", bytes([i % 256]) * 50_000)
            if i % 3:
                ledger.void(STUDY, f"q{i}")
            ledger.set_limit(Limit(Unit.RECORD, (500_000 + i) * 10**12))
            link.send(i)


def reserve_many(path: Path, name: str, n: int, link: Connection) -> None:
    """Try to reserve n questions; report the number of granted ones."""
    link.recv()
    granted = 0
    with LedgerFile(path, SystemClock()) as ledger:
        for i in range(n):
            try:
                ledger.reserve(
                    STUDY,
                    f"{name}-{i}",
                    Event("test", {}, LOCAL_PERSON, 0.3),
                    source=name,
                    recipient="x",
                    title="y",
                )
                granted += 1
            except BudgetError:
                pass
    link.send(granted)


def without_room(path: Path, link: Connection) -> None:
    """Store under a limit on file sizes, under which writes fail as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with LedgerFile(path, SystemClock()) as ledger:
        reserve(ledger, "q0")
        before = (ledger.read_head(), ledger.totals())
        resource.setrlimit(
            resource.RLIMIT_FSIZE, (path.stat().st_size + 10_000, resource.RLIM_INFINITY)
        )
        try:
            ledger.store(STUDY, "q0", bytes(100_000))
            link.send(("stored", ""))
        except ShoalError as error:
            link.send((error.code, str(error)))
        link.send(
            (ledger.read_head(), ledger.totals()) == before
            and ledger.find_entry(STUDY, "q0").state is ReleaseState.RESERVED
        )
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        ledger.store(STUDY, "q0", bytes(100_000))
        link.send(ledger.verify().seq == before[0].seq + 1)


def without_rights(path: Path, link: Connection) -> None:
    """Read and try to write as a user with read permission only."""
    LedgerFile(path, SystemClock()).close()  # imports what the other user may not
    os.setuid(65534)
    with LedgerFile(path, SystemClock()) as ledger:
        link.send(ledger.totals())
        try:
            reserve(ledger, "q1")
            link.send("reserved")
        except ShoalError as error:
            link.send(error.code)
