"""What a process does with a coordinator's store until it is killed, and what others then find there."""

from __future__ import annotations

import hashlib
import json
import os
from multiprocessing.connection import Connection

from shoal.coordinator.store.base import Accepted, Folded, Hosted, Incoming, Store
from shoal.coordinator.store.opening import open_store

STUDY = "5" * 64
FAR = 1 << 50
HOSTED = Hosted(STUDY, b"a manifest", opened=1_000, patience=60_000)


def digest(content: object) -> bytes:
    return hashlib.sha256(repr(content).encode()).digest()


def answer(i: int, content: object = None, sender: str = "", nonce: bytes | None = None) -> Incoming:
    """A submission that is named by a number."""
    return Incoming(sender, json.dumps(i).encode(), digest(i), digest(i if content is None else content), nonce)


def accept(store: Store, *numbers: int) -> tuple[Accepted, ...]:
    return store.accept(STUDY, [answer(i) for i in numbers], expires=FAR)


def fold(store: Store, holder: str, now: int = 0, until: int = 10) -> bool:
    """Fold all that is held into the state, a list of numbers, and tell everyone; False where another holds the lease."""
    term = store.lease(STUDY, holder, now, until)
    if term is None:
        return False
    loaded = store.load(STUDY, now, 100)
    folded = [*json.loads(loaded.state or b"[]"), *(json.loads(held.payload) for held in loaded.held)]
    letters = ((None, json.dumps(len(folded)).encode()),) if loaded.held else ()
    return store.save(STUDY, term, Folded(json.dumps(folded).encode(), tuple(held.number for held in loaded.held), letters=letters))


def state_of(store: Store) -> list[int]:
    return list(json.loads(store.load(STUDY, 0, 0).state or b"[]"))


def work_without_end(url: str, first: int, holder: str, link: Connection) -> None:
    """Accept numbers from a first one on, report each that was acknowledged, and fold them in."""
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
    """How many of the same numbers this process was the first to send, and how many it folded."""
    with open_store(url) as store:
        link.send("ready")
        link.recv()
        n_first = 0
        for i in range(n):
            n_first += accept(store, i) == ("accepted",)
            fold(store, f"process {os.getpid()}")
        link.send(n_first)


def begin(url: str, link: Connection) -> None:
    """Open a store where there may be none, and publish."""
    link.send("ready")
    link.recv()
    with open_store(url) as store:
        link.send(store.publish(HOSTED))
