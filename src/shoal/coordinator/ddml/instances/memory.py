"""Model instances in the memory of one process; they are lost when it ends."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.coordinator.ddml.instances.base import (
    WEIGHT,
    Average,
    Body,
    DrawnInstance,
    InstanceStore,
    MergeOutcome,
    ScrubOutcome,
    apply_update,
    check_shape,
    missing_instances_error,
    stack_instances,
)
from shoal.protocols.ddml.merging import Weights


@dataclass
class _StoredInstances:
    shape: tuple[int, int]
    instances: list[Body]
    n_merged: int = 0
    kept_from: int = 0
    names: defaultdict[int, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    average: Average | None = None
    rejections: Counter[str] = field(default_factory=Counter)


class MemoryInstanceStore(InstanceStore):
    """Instances as bytes that never change; a merge replaces them.

    Notes
    -----
    Threads may share it. A draw copies no model; a replacement and a blend copy none if the update
    is bytes. Nothing is written to a disk, except by swapping of memory.

    Examples
    --------
    >>> import numpy as np
    >>> store = MemoryInstanceStore()
    >>> store.create("s", np.zeros((2, 3), np.int32))
    >>> store.merge("s", 1, b"an id", 0, np.array([10, 20, 30], "<i4").tobytes(), 0.1)
    MergeOutcome(outcome='merged', n_merged=1)
    >>> store.merge("s", 0, b"an id", 0, bytes(12), 0.1).outcome, store.load_instances("s").tolist()
    ('repeated', [[0, 0, 0], [1, 2, 3]])
    """

    def __init__(self) -> None:
        self._studies: dict[str, _StoredInstances] = {}
        self._lock = threading.Lock()

    def find_shape(self, study: str) -> tuple[int, int] | None:
        return self._studies[study].shape if study in self._studies else None

    def create(self, study: str, instances: Weights) -> None:
        shape = (len(instances), instances.shape[1])
        with self._lock:
            if study not in self._studies:
                self._studies[study] = _StoredInstances(
                    shape, [row.astype(WEIGHT).tobytes() for row in instances]
                )
        check_shape(study, self._studies[study].shape, shape)

    def draw(self, study: str, slot: int) -> DrawnInstance:
        stored = self._find_study(study)
        return DrawnInstance(stored.n_merged, stored.instances[slot])

    def merge(
        self, study: str, slot: int, update_id: bytes, epoch: int, update: Body, blend_factor: float
    ) -> MergeOutcome:
        stored = self._find_study(study)
        with self._lock:
            if epoch < stored.kept_from:
                return MergeOutcome("stale", stored.n_merged)
            if update_id in stored.names[epoch]:
                return MergeOutcome("repeated", stored.n_merged)
            stored.instances[slot] = apply_update(stored.instances[slot], update, blend_factor)
            stored.names[epoch].add(update_id)
            stored.n_merged += 1
            return MergeOutcome("merged", stored.n_merged)

    def has_update(self, study: str, update_id: bytes, epoch: int) -> bool:
        return update_id in self._find_study(study).names.get(epoch, ())

    def load_instances(self, study: str) -> Weights:
        return stack_instances(self._find_study(study).instances)

    def count_merged(self, study: str) -> int:
        return self._find_study(study).n_merged

    def load_average(self, study: str) -> Average | None:
        return self._find_study(study).average

    def save_average(self, study: str, average: Average) -> bool:
        stored = self._find_study(study)
        with self._lock:
            if average.n_folds != 1 + (stored.average.n_folds if stored.average else 0):
                return False
            stored.average = average
            return True

    def count_rejection(self, study: str, reason: str) -> None:
        stored = self._find_study(study)
        with self._lock:
            stored.rejections[reason] += 1

    def list_rejections(self, study: str) -> Mapping[str, int]:
        return dict(self._find_study(study).rejections)

    def forget(self, study: str, epoch: int) -> None:
        stored = self._find_study(study)
        with self._lock:
            stored.kept_from = max(stored.kept_from, epoch)
            for old in [kept for kept in stored.names if kept < stored.kept_from]:
                del stored.names[old]

    def scrub(self, seconds: float = 0.0) -> ScrubOutcome:  # noqa: ARG002
        """Return "done": nothing is on a disk."""
        return "done"

    def close(self) -> None:
        """Do nothing: there are no files."""

    def _find_study(self, study: str) -> _StoredInstances:
        try:
            return self._studies[study]
        except KeyError:
            raise missing_instances_error(study) from None
