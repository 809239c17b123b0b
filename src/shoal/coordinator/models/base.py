"""What a store of model instances owes, whichever it is; one suite of tests runs against all of them.

A store keeps, for each study: k instances of p weights, how many updates were merged, the names of those that may still come again, the
average over time, and how many updates were refused, by reason. Of who sent an update it keeps nothing.

- An instance is little-endian int32, as it travels: what is drawn is sent as it is.
- An update is named by its epoch and its id; a retry repeats both. Its name is looked up in the same atomic step that merges it, so that
  it counts once, also where two processes are given it at the same moment.
- Names are forgotten by epochs. An update of an epoch whose names are forgotten is ``stale`` in that same step: no pause of a process is
  long enough for it to be merged twice.
- After a crash at any point an instance is a whole model, and each update is in (named, counted and merged) or is not.
- A store trusts its caller: sizes, ranges and slots are checked in `shoal.coordinator.serving`.
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
from shoal.protocols.ddml.merging import Weights, merged

Body = bytes | memoryview
"""An update's weights as they came."""

Floats = npt.NDArray[np.float64]

Scrubbed = Literal["done", "begun", "blocked"]
"""Earlier versions are gone from the disk; or will be soon, without being asked again; or stay, because others were in the way."""

WEIGHT = np.dtype("<i4")
MEAN = np.dtype("<f8")


class Drawn(NamedTuple):
    """An instance, and how many updates had been merged in all."""

    n_merged: int
    weights: Body


class Arriving(NamedTuple):
    """An update on its way into an instance: see `ModelStore.merge`."""

    slot: int
    id: bytes
    epoch: int
    update: Body


class Merged(NamedTuple):
    """What became of an update, and how many have been merged in all, this one included."""

    outcome: Literal["merged", "repeated", "stale"]
    n_merged: int


@dataclass(frozen=True, eq=False)
class Average:
    """The average over time of the instances' mean, in units of the grid.

    Parameters
    ----------
    n_folds
        How many means it is made of.
    weights
        ``(p,)``.
    """

    n_folds: int
    weights: Floats


def as_weights(body: Body) -> Weights:
    """The weights in a body, without a copy; they can be read only."""
    return np.frombuffer(body, WEIGHT)


def after(instance: Body, update: Body, part: float) -> Body:
    """An instance after an update, to be read only. An update that replaces it is not copied if it came as bytes."""
    if part == 1:
        return bytes(update)
    return merged(as_weights(instance), as_weights(update), part).data.cast("B").toreadonly()


def stacked(instances: Sequence[Body]) -> Weights:
    """``(k, p)``, read only: all instances, with one copy."""
    return as_weights(b"".join(instances)).reshape(len(instances), -1)


def unknown(study: str) -> StoreError:
    """The error for a study that a store does not have, or not whole."""
    return StoreError(
        "STORE-002",
        f"The store has no model instances of study {study:.16}.",
        why="They were never created here, or something else has deleted them.",
        fix="Start the study's coordinator with the store that it began with.",
    )


def check_shape(study: str, found: tuple[int, int], wanted: tuple[int, int]) -> None:
    """Refuse instances of another number or size than those that are there."""
    if found != wanted:
        raise StoreError(
            "STORE-002",
            f"The store has {found[0]} instances of {found[1]} weights for study {study:.16}, not {wanted[0]} of {wanted[1]}.",
            why="A study never changes these figures, so this is not the store of this study.",
            fix="Start the study's coordinator with the store that it began with, or with an empty one.",
        )


class ModelStore(ABC):
    """The instances of any number of studies. A study is named by the digest of its manifest, in hexadecimal."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @abstractmethod
    def shape(self, study: str) -> tuple[int, int] | None:
        """How many instances of how many weights; None for a study that is not here."""

    @abstractmethod
    def create(self, study: str, instances: Weights) -> None:
        """Begin a study with ``(k, p)`` instances; where it has begun, these are dropped, or refused if they have another shape."""

    @abstractmethod
    def draw(self, study: str, slot: int) -> Drawn:
        """One instance. Never waits for a merge."""

    @abstractmethod
    def merge(self, study: str, slot: int, id: bytes, epoch: int, update: Body, part: float) -> Merged:  # noqa: A002
        """Name, count and merge an update, all in one step or, where its name is known or forgotten, nothing.

        Parameters
        ----------
        slot
            The instance that changes.
        id, epoch
            The update's name.
        update, part
            Its weights, and the part of the way to them that the instance moves.

        Notes
        -----
        Ref: DDML Algorithm 2.
        """

    def merge_many(self, study: str, updates: Sequence[Arriving], part: float) -> list[Merged]:
        """Merge one after the other. Where it fails, any of them may be in: a retry finds out."""
        return [self.merge(study, *one, part) for one in updates]

    @abstractmethod
    def knows(self, study: str, id: bytes, epoch: int) -> bool:  # noqa: A002
        """Whether an update of this name was merged and is remembered. Only a look: what `merge` finds, it finds by itself."""

    @abstractmethod
    def all_instances(self, study: str) -> Weights:
        """``(k, p)``, read only: each a whole model, all of about the same moment."""

    @abstractmethod
    def n_merged(self, study: str) -> int:
        """How many updates have been merged."""

    @abstractmethod
    def average(self, study: str) -> Average | None:
        """The average over time, or None before the first fold."""

    @abstractmethod
    def keep_average(self, study: str, average: Average) -> bool:
        """Keep the next average. False, and nothing is kept, where another process has kept one of as many folds."""

    @abstractmethod
    def refuse(self, study: str, reason: str) -> None:
        """Count an update that was refused."""

    @abstractmethod
    def refusals(self, study: str) -> Mapping[str, int]:
        """Reason -> how many were refused for it."""

    @abstractmethod
    def forget(self, study: str, epoch: int) -> None:
        """Drop the names of updates of earlier epochs than this one; such updates are stale from now on."""

    @abstractmethod
    def scrub(self, seconds: float = 0.0) -> Scrubbed:
        """Rid the disk of the versions of instances that were earlier than this call, as far as the store can.

        Parameters
        ----------
        seconds
            How long to wait for those who are in the way, and for the end of what was begun. Draws never wait for it.

        Notes
        -----
        Two versions of an instance give away the update between them: on a disk they are what the paper's adversary I sees. Each store says
        what it leaves there, and for how long.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of files and connections."""
