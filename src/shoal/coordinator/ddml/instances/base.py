"""The interface of instance stores; batched merges.

`shoal.coordinator.ddml.model_server` uses it; one suite of tests runs against every instance store.
For each study a store contains: k instances of p weights, the number of merged updates, the names
of updates that may be sent again, the average over time, and the number of rejected updates by
reason. It contains nothing about the senders of updates.

A change must keep these rules:

- An instance is little-endian int32, the format of the HTTP API, so draws need no conversion.
- The name of an update is its epoch and its id; a retry repeats both. The name is looked up in the
  atomic step that merges the update, so it counts once, even if two processes receive it at the
  same moment.
- Names are deleted by epoch. An update of an epoch without names is ``stale`` in that same step: a
  process that pauses, for however long, cannot merge it twice.
- After a crash at any point each instance is a complete model, and each update is completely merged
  (with name and count) or not at all.
- A store trusts its caller: `shoal.coordinator.ddml.model_server` checks sizes, ranges and slots.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from shoal.errors import StoreError
from shoal.protocols.ddml.merging import Weights, merge_update

Body = bytes | memoryview
"""The weights of an update, as received."""

Floats = npt.NDArray[np.float64]

ScrubOutcome = Literal["done", "begun", "blocked"]
"""Whether earlier versions of the instances are erased from the disk.

``done``: they are erased. ``begun``: the database erases them in the background, without another
call. ``blocked``: they are still there, because another process prevented the erasure.
"""

WEIGHT = np.dtype("<i4")
MEAN = np.dtype("<f8")


class DrawnInstance(NamedTuple):
    """An instance, and the number of updates merged until then."""

    n_merged: int
    weights: Body


class PendingUpdate(NamedTuple):
    """An update that is to be merged; see `InstanceStore.merge`."""

    slot: int
    id: bytes
    epoch: int
    update: Body


class MergeOutcome(NamedTuple):
    """Outcome of an update, and the number of merged updates, including this one."""

    outcome: Literal["merged", "repeated", "stale"]
    n_merged: int


@dataclass(frozen=True, eq=False)
class Average:
    """The average over time of the instances' mean, in units of the grid.

    Parameters
    ----------
    n_folds
        Number of means in it.
    weights
        ``(p,)``.
    """

    n_folds: int
    weights: Floats


def as_weights(body: Body) -> Weights:
    """Return the weights of a body as a read-only view."""
    return np.frombuffer(body, WEIGHT)


def apply_update(instance: Body, update: Body, blend_factor: float) -> Body:
    """Return an instance after an update, read only.

    An update that replaces the instance is not copied if it is bytes.
    """
    if blend_factor == 1:
        return bytes(update)
    return (
        merge_update(as_weights(instance), as_weights(update), blend_factor)
        .data.cast("B")
        .toreadonly()
    )


def stack_instances(instances: Sequence[Body]) -> Weights:
    """Return all instances as a read-only ``(k, p)`` array, with one copy."""
    return as_weights(b"".join(instances)).reshape(len(instances), -1)


def missing_instances_error(study: str) -> StoreError:
    """Return the error for a study with missing instances."""
    return StoreError(
        "STORE-002",
        f"The store has no model instances of study {study:.16}.",
        why="They were never created in this store, or another program has deleted them.",
        fix="Start the coordinator with the store in which the study was published.",
    )


def check_shape(study: str, found: tuple[int, int], wanted: tuple[int, int]) -> None:
    """Raise ``STORE-002`` if the stored instances have another number or size."""
    if found != wanted:
        raise StoreError(
            "STORE-002",
            f"The store has {found[0]} instances of {found[1]} weights for study {study:.16}, not "
            f"{wanted[0]} of {wanted[1]}.",
            why="A study never changes these figures, so this is not the store of this study.",
            fix="Start the coordinator with the store in which the study was published, or with an "
            "empty one.",
        )


class InstanceStore(ABC):
    """The instances of studies, by the digest of the manifest in hexadecimal."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @abstractmethod
    def find_shape(self, study: str) -> tuple[int, int] | None:
        """Return the numbers of instances and of weights; None for an unknown study."""

    @abstractmethod
    def create(self, study: str, instances: Weights) -> None:
        """Add a study with ``(k, p)`` instances; do nothing if the store has it.

        Raise ``STORE-002`` if the store has it with another shape.
        """

    @abstractmethod
    def draw(self, study: str, slot: int) -> DrawnInstance:
        """Return one instance, without waiting for a merge."""

    @abstractmethod
    def merge(
        self, study: str, slot: int, update_id: bytes, epoch: int, update: Body, blend_factor: float
    ) -> MergeOutcome:
        """Store the name of an update, count and merge it, in one atomic step.

        Nothing changes if its name is stored, or is of an epoch without names.

        Parameters
        ----------
        slot
            The instance that changes.
        update_id, epoch
            The update's name.
        blend_factor
            The fraction of the way to the update's weights that the instance moves.

        Notes
        -----
        Ref: DDML Algorithm 2.
        """

    def merge_many(
        self, study: str, updates: Sequence[PendingUpdate], blend_factor: float
    ) -> list[MergeOutcome]:
        """Merge updates in order; after an error, each may be merged or not, and can be retried."""
        return [self.merge(study, *update, blend_factor) for update in updates]

    @abstractmethod
    def has_update(self, study: str, update_id: bytes, epoch: int) -> bool:
        """Return whether an update of this name was merged and its name is still stored.

        `merge` does not depend on the result.
        """

    @abstractmethod
    def load_instances(self, study: str) -> Weights:
        """Return all instances, read only ``(k, p)``: complete models of about the same moment."""

    @abstractmethod
    def count_merged(self, study: str) -> int:
        """Return how many updates have been merged."""

    @abstractmethod
    def load_average(self, study: str) -> Average | None:
        """Return the average over time; None before the first fold."""

    @abstractmethod
    def save_average(self, study: str, average: Average) -> bool:
        """Store the next average.

        Return False and change nothing if another process has stored one with this number of folds.
        """

    @abstractmethod
    def count_rejection(self, study: str, reason: str) -> None:
        """Count a rejected update."""

    @abstractmethod
    def list_rejections(self, study: str) -> Mapping[str, int]:
        """Return the number of rejected updates by reason."""

    @abstractmethod
    def forget(self, study: str, epoch: int) -> None:
        """Delete the names of updates of epochs before this one; such updates become stale."""

    @abstractmethod
    def scrub(self, seconds: float = 0.0) -> ScrubOutcome:
        """Erase earlier versions of instances from the disk if the store can.

        Parameters
        ----------
        seconds
            How long to wait for other processes, and for the end of the work. Draws never wait.

        Notes
        -----
        Two versions of an instance reveal the update between them; on a disk they are the view of
        the paper's adversary I. Each store documents what it leaves there, and for how long.
        """

    @abstractmethod
    def close(self) -> None:
        """Close files and connections."""


UpdateName = tuple[int, bytes]
"""An update's epoch and id."""


def decide_outcomes(
    updates: Sequence[PendingUpdate], new: set[UpdateName], n_merged: int, kept_from: int
) -> list[MergeOutcome]:
    """Return the outcome of each update, in order.

    Parameters
    ----------
    updates
        Updates in order of arrival; of several with one name the first counts.
    new
        Names that were not stored before.
    n_merged, kept_from
        Number of updates merged before, and the first epoch with stored names.

    Examples
    --------
    >>> one, old = PendingUpdate(0, b"id", 7, b""), PendingUpdate(0, b"id", 3, b"")
    >>> [outcome for outcome, n_merged in decide_outcomes([one, old, one], {(7, b"id")}, 0, 4)]
    ['merged', 'stale', 'repeated']
    """
    outcomes, left = [], set(new)
    for update in updates:
        name = (update.epoch, update.id)
        if name in left:
            left.remove(name)
            n_merged += 1
            outcomes.append(MergeOutcome("merged", n_merged))
        else:
            outcomes.append(
                MergeOutcome("stale" if update.epoch < kept_from else "repeated", n_merged)
            )
    return outcomes


def select_merged(
    updates: Sequence[PendingUpdate], outcomes: Sequence[MergeOutcome]
) -> list[PendingUpdate]:
    """Return the updates with the outcome ``merged``."""
    return [
        update
        for update, outcome in zip(updates, outcomes, strict=True)
        if outcome.outcome == "merged"
    ]


def apply_updates(
    updates: Sequence[PendingUpdate], instances: Mapping[int, Body], blend_factor: float
) -> dict[int, Body]:
    """Return slots and their instances after all updates.

    Parameters
    ----------
    updates
        Updates that are merged, in order.
    instances
        Instances before, by slot; not needed if an update replaces its instance.
    blend_factor
        See `InstanceStore.merge`.
    """
    now: dict[int, Body] = {}
    for slot, _, _, update in updates:
        now[slot] = (
            update
            if blend_factor == 1
            else apply_update(now[slot] if slot in now else instances[slot], update, blend_factor)
        )
    return now
