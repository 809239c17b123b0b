"""What a database of SDQ remembers of the round that is open; it is saved, and its secrets last as long as they are needed."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from shoal.protocols.base import PeerState
from shoal.protocols.joint import party
from shoal.protocols.sdq.messages import Ask, JointKeys, Natural
from shoal.protocols.sums.sitting import Sitting


class Following(PeerState):
    """The round that is open, and what is known of it.

    Parameters
    ----------
    asked_for
        What was asked last.
    sitting
        The secure sum.
    seat, box, keys
        The joint computation, our private key in it, and the keys of its parties.
    selected
        Two selected: the levels for which two were to be selected, in order.
    role
        What this database does in the last of them (0 nothing, 1 add, 2 subtract); None where it does not know, or needs it no more.
    is_over
        Whether nothing more is answered.
    """

    asked_for: Ask | None = None
    sitting: Sitting | None = None
    seat: party.Seat | None = None
    box: Annotated[bytes, Field(repr=False)] = b""
    keys: JointKeys | None = None
    selected: tuple[str, ...] = ()
    role: Annotated[Natural | None, Field(repr=False)] = None
    is_over: bool = False

    def closed(self) -> Following:
        """The round without what belongs to its joint computation."""
        return self.replace(seat=None if self.seat is None else party.leave(self.seat), box=b"", keys=None)

    def left(self) -> Following:
        """The round is left: all secrets of it are erased, and what still comes of it is dropped."""
        return self.closed().replace(sitting=None if self.sitting is None else self.sitting.ended())
