"""What the crash tests of the model stores run in processes of their own."""

from __future__ import annotations

from multiprocessing.connection import Connection

import numpy as np

from shoal.coordinator.models import open_models
from shoal.coordinator.serving import Serving
from shoal.domain import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy, SystemEntropy
from shoal.protocols.ddml.params import Params

STUDY = "5" * 64
K, P = 3, 5_000
ALIKE = 10**9
SCHEMA = Schema([Numeric("age", 0, 100, missing=False)], label=Categorical("ill", ["no", "yes"]))
PARAMS = Params(SCHEMA, epsilon=4.0, size=1_000, n_instances=4)


def model(value: int) -> bytes:
    """All weights alike: a model that is not whole shows."""
    return np.full(P, value, "<i4").tobytes()


def name(i: int) -> bytes:
    return i.to_bytes(16, "big")


def merge_the_same(address: str, seed: int, n: int, part: float, link: Connection) -> None:
    """Merges n updates, of which every process has the same, in an order of its own; answers how many it was the one to merge.

    All have the same weights: then the instances after them are the same in every order, and an update that was overwritten shows.
    """
    entropy = SeededEntropy(seed)
    with open_models(None, address) as store:
        link.send("ready")
        link.recv()
        n_merged = 0
        for i in sorted(range(n), key=lambda _: entropy.word()):
            n_merged += store.merge(STUDY, i % K, name(i), 0, model(ALIKE), part).outcome == "merged"
            drawn = np.frombuffer(store.draw(STUDY, i % K).weights, "<i4")
            assert (drawn == drawn[0]).all()
    link.send(n_merged)


def merge_without_end(address: str, first: int, part: float, link: Connection) -> None:
    """Update after update, each announced before and reported after."""
    with open_models(None, address) as store:
        for i in range(first, 1 << 30):
            link.send(("asked", i))
            outcome = store.merge(STUDY, i % K, name(i), 0, model(i), part).outcome
            link.send((outcome, i))


def serve(address: str, n: int, link: Connection) -> None:
    """Draws and updates as a coordinator's process does them."""
    entropy = SystemEntropy()
    with open_models(None, address) as store:
        serving = Serving(PARAMS, STUDY, store, None, entropy)
        link.send("ready")
        link.recv()
        outcomes = []
        for _ in range(n):
            epoch, weights = serving.draw()
            outcomes.append(serving.update(entropy.bytes(16), epoch, weights))
    link.send(outcomes.count("merged"))
