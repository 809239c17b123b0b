"""Model instances in the memory of one process: gone when it ends."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.coordinator.models.base import WEIGHT, Average, Body, Drawn, Merged, ModelStore, Scrubbed, after, check_shape, stacked, unknown
from shoal.protocols.ddml.merging import Weights


@dataclass
class _Study:
    shape: tuple[int, int]
    instances: list[Body]
    n_merged: int = 0
    kept_from: int = 0
    names: defaultdict[int, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    average: Average | None = None
    refusals: Counter[str] = field(default_factory=Counter)


class MemoryModels(ModelStore):
    """Instances as bytes that nobody changes; a merge puts others in their place.

    Notes
    -----
    Threads may share it. Copies of a model: a draw makes none; a replacement and a blend none, if the update came as bytes.
    Nothing reaches a disk, short of swapped memory.

    Examples
    --------
    >>> import numpy as np
    >>> store = MemoryModels()
    >>> store.create("s", np.zeros((2, 3), np.int32))
    >>> store.merge("s", 1, b"an id", 0, np.array([10, 20, 30], "<i4").tobytes(), 0.1)
    Merged(outcome='merged', n_merged=1)
    >>> store.merge("s", 0, b"an id", 0, bytes(12), 0.1).outcome, store.all_instances("s").tolist()
    ('repeated', [[0, 0, 0], [1, 2, 3]])
    """

    def __init__(self) -> None:
        self._studies: dict[str, _Study] = {}
        self._lock = threading.Lock()

    def shape(self, study: str) -> tuple[int, int] | None:
        return self._studies[study].shape if study in self._studies else None

    def create(self, study: str, instances: Weights) -> None:
        shape = (len(instances), instances.shape[1])
        with self._lock:
            if study not in self._studies:
                self._studies[study] = _Study(shape, [row.astype(WEIGHT).tobytes() for row in instances])
        check_shape(study, self._studies[study].shape, shape)

    def draw(self, study: str, slot: int) -> Drawn:
        found = self._study(study)
        return Drawn(found.n_merged, found.instances[slot])

    def merge(self, study: str, slot: int, id: bytes, epoch: int, update: Body, part: float) -> Merged:  # noqa: A002
        found = self._study(study)
        with self._lock:
            if epoch < found.kept_from:
                return Merged("stale", found.n_merged)
            if id in found.names[epoch]:
                return Merged("repeated", found.n_merged)
            found.instances[slot] = after(found.instances[slot], update, part)
            found.names[epoch].add(id)
            found.n_merged += 1
            return Merged("merged", found.n_merged)

    def knows(self, study: str, id: bytes, epoch: int) -> bool:  # noqa: A002
        return id in self._study(study).names.get(epoch, ())

    def all_instances(self, study: str) -> Weights:
        return stacked(self._study(study).instances)

    def n_merged(self, study: str) -> int:
        return self._study(study).n_merged

    def average(self, study: str) -> Average | None:
        return self._study(study).average

    def keep_average(self, study: str, average: Average) -> bool:
        found = self._study(study)
        with self._lock:
            if average.n_folds != 1 + (found.average.n_folds if found.average else 0):
                return False
            found.average = average
            return True

    def refuse(self, study: str, reason: str) -> None:
        found = self._study(study)
        with self._lock:
            found.refusals[reason] += 1

    def refusals(self, study: str) -> Mapping[str, int]:
        return dict(self._study(study).refusals)

    def forget(self, study: str, epoch: int) -> None:
        found = self._study(study)
        with self._lock:
            found.kept_from = max(found.kept_from, epoch)
            for old in [kept for kept in found.names if kept < found.kept_from]:
                del found.names[old]

    def scrub(self, seconds: float = 0.0) -> Scrubbed:  # noqa: ARG002
        """There is nothing to do."""
        return "done"

    def close(self) -> None:
        """There is nothing to do."""

    def _study(self, study: str) -> _Study:
        try:
            return self._studies[study]
        except KeyError:
            raise unknown(study) from None
