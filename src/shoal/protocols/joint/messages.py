"""What travels in a joint computation: sealed frames from party to party, which the aggregator passes on and cannot read."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from shoal.messages.base import Message

MAX_SEALED = (1 << 22) + (1 << 6)
"""Most bytes of a sealed frame: an argmax of 300 candidates takes half a megabyte, and 2,000 fit."""

Natural = Annotated[int, Field(ge=0)]


class JointFrame(Message):
    """What one party's computation has for another's, sealed for it. Parties are counted from 0, and frames from one to another too."""

    type_name: ClassVar[str] = "joint.frame"
    max_bytes: ClassVar[int] = MAX_SEALED + (1 << 10)

    round: Natural
    sender: Natural
    to: Natural
    number: Natural
    sealed: Annotated[bytes, Field(max_length=MAX_SEALED)]

    @property
    def submission(self) -> bytes:
        return f"{self.round}/{self.to}/{self.number}".encode()
