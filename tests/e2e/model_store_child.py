"""Child processes of the crash tests of instance stores."""

from __future__ import annotations

from multiprocessing.connection import Connection

import numpy as np

from shoal.coordinator.ddml.instances import open_instance_store
from shoal.coordinator.ddml.model_server import ModelServer
from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy, SystemEntropy
from shoal.protocols.ddml.params import DDMLParams

STUDY = "5" * 64
K, P = 3, 5_000
ALIKE = 10**9
SCHEMA = Schema([Numeric("age", 0, 100, missing=False)], label=Categorical("ill", ["no", "yes"]))
PARAMS = DDMLParams(SCHEMA, epsilon=4.0, size=1_000, n_instances=4)


def model(value: int) -> bytes:
    """Return a model with equal weights, so that a torn write is visible."""
    return np.full(P, value, "<i4").tobytes()


def name(i: int) -> bytes:
    return i.to_bytes(16, "big")


def merge_the_same(address: str, seed: int, n: int, part: float, link: Connection) -> None:
    """Merge n updates, the same in each process, in a random order; report the merged ones.

    All updates have the same weights. Then the order does not change the instances, and an update
    that was overwritten is visible.
    """
    entropy = SeededEntropy(seed)
    with open_instance_store(None, address) as store:
        link.send("ready")
        link.recv()
        n_merged = 0
        for i in sorted(range(n), key=lambda _: entropy.word()):
            n_merged += (
                store.merge(STUDY, i % K, name(i), 0, model(ALIKE), part).outcome == "merged"
            )
            drawn = np.frombuffer(store.draw(STUDY, i % K).weights, "<i4")
            assert (drawn == drawn[0]).all()
    link.send(n_merged)


def merge_without_end(address: str, first: int, part: float, link: Connection) -> None:
    """Merge one update after another; report each before and after."""
    with open_instance_store(None, address) as store:
        for i in range(first, 1 << 30):
            link.send(("asked", i))
            outcome = store.merge(STUDY, i % K, name(i), 0, model(i), part).outcome
            link.send((outcome, i))


def serve(address: str, n: int, link: Connection) -> None:
    """Draw and update as a worker of a coordinator does."""
    entropy = SystemEntropy()
    with open_instance_store(None, address) as store:
        serving = ModelServer(PARAMS, STUDY, store, None, entropy)
        link.send("ready")
        link.recv()
        outcomes = []
        for _ in range(n):
            epoch, weights = serving.draw()
            outcomes.append(serving.update(entropy.bytes(16), epoch, weights))
    link.send(outcomes.count("merged"))
