"""What travels in DDML: a peer draws an instance of the model, and sends it back improved, with noise."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from shoal.messages.base import Array, Message, Registry

ID_BYTES = 16

Id = Annotated[bytes, Field(min_length=ID_BYTES, max_length=ID_BYTES)]
"""Random bytes, so many that no two senders ever draw the same."""
Natural = Annotated[int, Field(ge=0)]

_MODEL_BYTES = (1 << 22) + (1 << 10)
"""2^20 weights of four bytes, and what is around them."""


class Draw(Message):
    """A peer that has rows asks for an instance.

    It has no submission: an index of draws would say who drew when. A draw that comes twice is answered twice, and the peer takes the
    first answer that names its draw.
    """

    type_name: ClassVar[str] = "ddml.draw"

    id: Id


class Instance(Message):
    """One of the instances, for the draw that it names, and the epoch in which it was drawn."""

    type_name: ClassVar[str] = "ddml.instance"
    max_bytes: ClassVar[int] = _MODEL_BYTES

    draw: Id
    epoch: Natural
    weights: Array


class Update(Message):
    """The instance after a noisy step, with the epoch in which it was drawn.

    Its id is its own and says nothing of the draw. The rest does: the epoch is repeated, and the weights lie near the instance that was
    drawn, at one public distance where the step is k-closest. A coordinator can tell which draw an update belongs to.
    """

    type_name: ClassVar[str] = "ddml.update"
    spends: ClassVar[bool] = True
    is_anonymous: ClassVar[bool] = True
    max_bytes: ClassVar[int] = _MODEL_BYTES

    id: Id
    epoch: Natural
    weights: Array

    @property
    def submission(self) -> bytes:
        return self.id


MESSAGES = Registry(Draw, Instance, Update)
