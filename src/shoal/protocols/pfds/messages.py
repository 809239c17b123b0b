"""What travels in PFDS: what is asked, what holders share, and what is published to everyone.

Numbers that are not whole travel as their 64 bits (`floats_in`, `floats_of`), so that an array has one form whatever it holds.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array, Message, Record, Registry
from shoal.protocols.pfds.sums import Course
from shoal.protocols.sums.messages import SUM_MESSAGES

Natural = Annotated[int, Field(ge=0)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Names = Annotated[tuple[Name, ...], Field(max_length=10_000)]

MAX_REASON = 500
"""Most characters of the reason for which a study ends."""

_MOST = (1 << 24) - (1 << 12)
_MANY = 1 << 20


def floats_in(values: npt.NDArray[np.float64]) -> Array:
    """Floats as they travel."""
    return Array.of(np.ascontiguousarray(values, np.float64).view(np.int64))


def floats_of(array: Array, count: int) -> npt.NDArray[np.float64]:
    """So many finite floats, or the sender's error."""
    values: npt.NDArray[np.float64] = array.expect("int64", count).astype(np.int64).view(np.float64)
    if not np.isfinite(values).all():
        raise RemoteProtocolError("MSG-005", "An array of numbers holds one that is not finite.")
    return values


class Ask(Message):
    """Trust secure-sum: the next sum, and what everyone counts it with."""

    type_name: ClassVar[str] = "pfds.ask"
    max_bytes: ClassVar[int] = _MANY

    round: Natural
    course: Course


class Tables(Message):
    """Trust local: a holder's tables of the attributes that fall to it, with all of their noise."""

    type_name: ClassVar[str] = "pfds.tables"
    spends: ClassVar[bool] = True
    max_bytes: ClassVar[int] = _MANY

    counts: Array

    @property
    def submission(self) -> bytes:
        return b"tables"


class SharedModel(Message):
    """Variant plus: what was learned from all tables, published to everyone."""

    type_name: ClassVar[str] = "pfds.model"
    max_bytes: ClassVar[int] = _MOST

    weights: Array
    intercepts: Array
    variances: Array
    shares: Array


class Splits(Message):
    """Variant paper: the attributes and split values of all nodes of a level of a holder's tree."""

    type_name: ClassVar[str] = "pfds.splits"
    spends: ClassVar[bool] = True
    max_bytes: ClassVar[int] = _MOST

    level: Natural
    attributes: Array
    values: Array

    @property
    def submission(self) -> bytes:
        return self.level.to_bytes(2, "big")


class Leaves(Message):
    """Variant paper: the noisy counts of classes in the leaves of a holder's tree."""

    type_name: ClassVar[str] = "pfds.leaves"
    spends: ClassVar[bool] = True
    max_bytes: ClassVar[int] = _MOST

    counts: Array

    @property
    def submission(self) -> bytes:
        return b"leaves"


class LevelCounts(Message):
    """Variant paper: the noisy numbers of records in the nodes of a level of a holder's tree."""

    type_name: ClassVar[str] = "pfds.counts"
    spends: ClassVar[bool] = True
    max_bytes: ClassVar[int] = _MOST

    level: Natural
    counts: Array

    @property
    def submission(self) -> bytes:
        return self.level.to_bytes(2, "big")


class LeafLabels(Message):
    """Variant paper: the label of each leaf by its noisy counts, which take more room; it travels inside `PassedOn` alone."""

    type_name: ClassVar[str] = "pfds.leaf-labels"
    max_bytes: ClassVar[int] = _MOST

    labels: Array


class Data(Message):
    """Variant paper: a holder's private labelled data; it follows from what was released, and costs nothing."""

    type_name: ClassVar[str] = "pfds.data"
    max_bytes: ClassVar[int] = _MOST

    n_rows: Natural
    columns: tuple[Array, ...]
    labels: Array

    @property
    def submission(self) -> bytes:
        return b"data"


class PassedOn(Message):
    """To everyone: what a holder has shared, under its name."""

    type_name: ClassVar[str] = "pfds.passed-on"
    max_bytes: ClassVar[int] = 1 << 24

    holder: Name
    shared: Splits | LeafLabels | Data

    @model_validator(mode="after")
    def _is_of_one_study(self) -> Self:
        if self.shared.study != self.study:
            raise ValueError("what is passed on belongs to another study")
        return self


class Label(Message):
    """To everyone: all trees are there that will be; label with those of these holders."""

    type_name: ClassVar[str] = "pfds.label"
    max_bytes: ClassVar[int] = _MOST

    holders: Names


class Left(Record):
    """A holder that was left out, and why."""

    holder: Name
    reason: Annotated[str, Field(max_length=MAX_REASON)]


class Ended(Message):
    """To everyone: all is published that will be; who was left out; or why there is nothing."""

    type_name: ClassVar[str] = "pfds.ended"
    max_bytes: ClassVar[int] = _MOST

    holders: Names = ()
    left_out: Annotated[tuple[Left, ...], Field(max_length=10_000)] = ()
    reason: Annotated[str, Field(max_length=MAX_REASON)] | None = None


MESSAGES = Registry(Ask, Tables, SharedModel, Splits, Leaves, LevelCounts, Data, PassedOn, Label, Ended, *SUM_MESSAGES)
