"""Child processes that use a coordinator's store until they are killed."""

from __future__ import annotations

import hashlib
import json
import os
from multiprocessing.connection import Connection

from shoal.coordinator.store import open_store
from shoal.coordinator.store.base import (
    StepResult,
    Store,
    StudyRecord,
    Submission,
    SubmissionOutcome,
)

STUDY = "5" * 64
FAR = 1 << 50
HOSTED = StudyRecord(STUDY, b"a manifest", opened=1_000, phase_timeout=60_000)


def digest(content: object) -> bytes:
    return hashlib.sha256(repr(content).encode()).digest()


def answer(
    i: int, content: object = None, sender: str = "", nonce: bytes | None = None
) -> Submission:
    """Return a submission named by a number."""
    return Submission(
        sender, json.dumps(i).encode(), digest(i), digest(i if content is None else content), nonce
    )


def accept(store: Store, *numbers: int) -> tuple[SubmissionOutcome, ...]:
    return store.accept(STUDY, [answer(i) for i in numbers], expires=FAR)


def fold(store: Store, holder: str, now: int = 0, until: int = 10) -> bool:
    """Append all pending inputs to the state, a list of numbers; return False without lease."""
    term = store.lease(STUDY, holder, now, until)
    if term is None:
        return False
    loaded = store.load(STUDY, now, 100)
    folded = [
        *json.loads(loaded.state or b"[]"),
        *(json.loads(held.payload) for held in loaded.inputs),
    ]
    letters = ((None, json.dumps(len(folded)).encode()),) if loaded.inputs else ()
    return store.save(
        STUDY,
        term,
        StepResult(
            json.dumps(folded).encode(),
            tuple(held.number for held in loaded.inputs),
            messages=letters,
        ),
    )


def read_state(store: Store) -> list[int]:
    return list(json.loads(store.load(STUDY, 0, 0).state or b"[]"))


def work_without_end(url: str, first: int, holder: str, link: Connection) -> None:
    """Accept numbers from a first one on, report each acknowledged one, and apply them."""
    with open_store(url) as store:
        store.publish(HOSTED)
        i = first
        while True:
            link.send(("asked", i))
            accept(store, i, i + 1)
            link.send(("accepted", i))
            i += 2
            fold(store, holder)


def accept_the_same(url: str, n: int, link: Connection) -> None:
    """Send the same numbers as others; return how many were first, and how many were applied."""
    with open_store(url) as store:
        link.send("ready")
        link.recv()
        n_first = 0
        for i in range(n):
            n_first += accept(store, i) == ("accepted",)
            fold(store, f"process {os.getpid()}")
        link.send(n_first)


def begin(url: str, link: Connection) -> None:
    """Open a store, create it if necessary, and publish."""
    link.send("ready")
    link.recv()
    with open_store(url) as store:
        link.send(store.publish(HOSTED))
