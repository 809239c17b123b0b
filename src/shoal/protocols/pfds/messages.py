"""Messages: questions, the data that holders share, and the published results.

The peers and aggregators of both variants exchange them. Type names, field names and encodings are
part of the wire specification.

Floats are sent as their 64 bits (`encode_floats`, `decode_floats`), so every array has one form.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, ClassVar, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array, Message, Record, Registry
from shoal.messages.codec import encode
from shoal.protocols.secagg.messages import SUM_MESSAGES

Natural = Annotated[int, Field(ge=0)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Names = Annotated[tuple[Name, ...], Field(max_length=10_000)]

MAX_REASON = 500
"""Largest number of characters of the reason for which a study ends."""

_MAX_BYTES = (1 << 24) - (1 << 12)
_MANY = 1 << 20


def encode_floats(values: npt.NDArray[np.float64]) -> Array:
    """Return floats as an array of their 64-bit patterns."""
    return Array.from_values(np.ascontiguousarray(values, np.float64).view(np.int64))


def decode_floats(array: Array, count: int) -> npt.NDArray[np.float64]:
    """Return ``count`` finite floats, or raise `RemoteProtocolError`."""
    values: npt.NDArray[np.float64] = array.expect("int64", count).astype(np.int64).view(np.float64)
    if not np.isfinite(values).all():
        raise RemoteProtocolError("MSG-005", "An array contains a number that is not finite.")
    return values


class PFDSScriptState(Record):
    """Public state of the script, by which every holder counts.

    Parameters
    ----------
    step
        Number of answered questions.
    weights, intercept
        ``(D,)`` 64-bit integers, and one integer, in units of 2^-20: the additive model so far.
    direction
        ``(D,)`` the change of the weights by the residual rounds; 0 before the search.
    reaches
        Distance from 0 to the outermost bins of the two scores.
    """

    step: int
    weights: Array
    intercept: int
    direction: Array
    reaches: tuple[int, int]


class PFDSAsk(Message):
    """Trust secure-sum: the next sum, and the script state that the holders count with."""

    type_name: ClassVar[str] = "pfds.ask"
    max_bytes: ClassVar[int] = _MANY

    round: Natural
    course: PFDSScriptState


class HolderTables(Message):
    """Trust local: a holder's tables of its assigned attributes, with all of their noise."""

    type_name: ClassVar[str] = "pfds.tables"
    spends: ClassVar[bool] = True
    report_fields: ClassVar[tuple[str, ...]] = ("counts",)
    max_bytes: ClassVar[int] = _MANY

    counts: Array

    @property
    def submission(self) -> bytes:
        return b"tables"


class SharedModel(Message):
    """Variant plus: the model learned from all tables, published to everyone."""

    type_name: ClassVar[str] = "pfds.model"
    max_bytes: ClassVar[int] = _MAX_BYTES

    weights: Array
    intercepts: Array
    variances: Array
    shares: Array


class LevelSplits(Message):
    """Variant paper: attributes and split values of all nodes of one level of a holder's tree."""

    type_name: ClassVar[str] = "pfds.splits"
    spends: ClassVar[bool] = True
    report_fields: ClassVar[tuple[str, ...]] = ("attributes", "values")
    max_bytes: ClassVar[int] = _MAX_BYTES

    level: Natural
    attributes: Array
    values: Array

    @property
    def submission(self) -> bytes:
        return self.level.to_bytes(2, "big")


class LeafCounts(Message):
    """Variant paper: the noisy class counts in the leaves of a holder's tree."""

    type_name: ClassVar[str] = "pfds.leaves"
    spends: ClassVar[bool] = True
    report_fields: ClassVar[tuple[str, ...]] = ("counts",)
    max_bytes: ClassVar[int] = _MAX_BYTES

    counts: Array

    @property
    def submission(self) -> bytes:
        return b"leaves"


class LevelCounts(Message):
    """Variant paper: the noisy record counts of the nodes of one level of a holder's tree."""

    type_name: ClassVar[str] = "pfds.counts"
    spends: ClassVar[bool] = True
    report_fields: ClassVar[tuple[str, ...]] = ("counts",)
    max_bytes: ClassVar[int] = _MAX_BYTES

    level: Natural
    counts: Array

    @property
    def submission(self) -> bytes:
        return self.level.to_bytes(2, "big")


class LeafLabels(Message):
    """Variant paper: the label of each leaf, derived from its noisy counts.

    Labels are smaller than counts. The message is sent only inside `ForwardedPiece`.
    """

    type_name: ClassVar[str] = "pfds.leaf-labels"
    max_bytes: ClassVar[int] = _MAX_BYTES

    labels: Array


class SyntheticData(Message):
    """Variant paper: a holder's private labelled data.

    It is computed from released numbers only, so it costs nothing.
    """

    type_name: ClassVar[str] = "pfds.data"
    max_bytes: ClassVar[int] = _MAX_BYTES

    n_rows: Natural
    columns: tuple[Array, ...]
    labels: Array

    @property
    def submission(self) -> bytes:
        return b"data"


class ForwardedPiece(Message):
    """To everyone: one piece that a holder has shared, with the holder's name."""

    type_name: ClassVar[str] = "pfds.passed-on"
    max_bytes: ClassVar[int] = 1 << 24

    holder: Name
    shared: LevelSplits | LeafLabels | SyntheticData

    @model_validator(mode="after")
    def _check_study(self) -> Self:
        if self.shared.study != self.study:
            raise ValueError("the forwarded piece belongs to another study")
        return self


class LabellingHolders(Message):
    """To everyone: no more trees follow; label with the trees of these holders."""

    type_name: ClassVar[str] = "pfds.label"
    max_bytes: ClassVar[int] = _MAX_BYTES

    holders: Names


class LeftOutHolder(Record):
    """A holder that was left out, and the reason."""

    holder: Name
    reason: Annotated[str, Field(max_length=MAX_REASON)]


class PFDSStudyEnd(Message):
    """To everyone: nothing more is published; lists the holders that were left out.

    If there is no result, it contains the reason.
    """

    type_name: ClassVar[str] = "pfds.ended"
    max_bytes: ClassVar[int] = _MAX_BYTES

    holders: Names = ()
    left_out: Annotated[tuple[LeftOutHolder, ...], Field(max_length=10_000)] = ()
    reason: Annotated[str, Field(max_length=MAX_REASON)] | None = None


MESSAGES = Registry(
    PFDSAsk,
    HolderTables,
    SharedModel,
    LevelSplits,
    LeafCounts,
    LevelCounts,
    SyntheticData,
    ForwardedPiece,
    LabellingHolders,
    PFDSStudyEnd,
    *SUM_MESSAGES,
)


def compute_ask_digest(ask: PFDSAsk) -> bytes:
    """Return the SHA-256 digest of a question; each party computes it from the message."""
    return hashlib.sha256(encode(ask)).digest()
