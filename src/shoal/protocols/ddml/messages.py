"""Messages, and the check of weights.

A peer draws an instance of the model and sends it back after a noisy step. Peers and the aggregator
call `read_weights` before they use the weights of a message.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array, Message, Registry
from shoal.protocols.ddml.merging import MAX_WEIGHT, Weights, is_in_range
from shoal.protocols.ddml.params import DDMLParams

ID_BYTES = 16

Id = Annotated[bytes, Field(min_length=ID_BYTES, max_length=ID_BYTES)]
"""Random bytes; two senders draw the same ones with negligible probability."""
Natural = Annotated[int, Field(ge=0)]

_MODEL_BYTES = (1 << 22) + (1 << 10)
"""2^20 weights of four bytes, and the other fields."""


class DDMLDraw(Message):
    """A peer's request for an instance.

    It has no submission: an index of draws would show who drew when. A repeated draw is answered
    again, and the peer uses the first answer that names its draw.
    """

    type_name: ClassVar[str] = "ddml.draw"

    id: Id


class DDMLInstance(Message):
    """The answer to a draw: an instance and the epoch of the draw."""

    type_name: ClassVar[str] = "ddml.instance"
    max_bytes: ClassVar[int] = _MODEL_BYTES

    draw: Id
    epoch: Natural
    weights: Array


class DDMLUpdate(Message):
    """The instance after a noisy step, with the epoch of its draw.

    Its id is independent of the draw. The other fields are not: the epoch is repeated, and the
    weights lie near the instance that was drawn, at one public distance if the step is k-closest.
    A coordinator can find out which draw an update belongs to.
    """

    type_name: ClassVar[str] = "ddml.update"
    spends: ClassVar[bool] = True
    report_fields: ClassVar[tuple[str, ...]] = ("weights",)
    is_anonymous: ClassVar[bool] = True
    max_bytes: ClassVar[int] = _MODEL_BYTES

    id: Id
    epoch: Natural
    weights: Array

    @property
    def submission(self) -> bytes:
        return self.id


MESSAGES = Registry(DDMLDraw, DDMLInstance, DDMLUpdate)


def read_weights(array: Array, params: DDMLParams) -> Weights:
    """Return the weights of a message.

    Raise `RemoteProtocolError` if their number, type or range is not that of the study.
    """
    weights: Weights = array.expect("int32", params.n_weights)
    if not is_in_range(weights):
        raise RemoteProtocolError(
            "MSG-005",
            "A model has a weight that is out of range.",
            why=f"Weights lie between -{MAX_WEIGHT} and {MAX_WEIGHT}, in units of the grid.",
        )
    return weights


def future_epoch_error(who: str, epoch: int, now: int) -> RemoteProtocolError:
    """Return the error for an update of an epoch that has not begun."""
    return RemoteProtocolError(
        "DDML-001", f"{who} sent an update of epoch {epoch}; the current epoch is {now}."
    )
