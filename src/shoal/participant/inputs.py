"""What a participant's course is given, beside what any driver gives a peer: what came, what was delivered, and that it is over."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.protocols.base import Abort, Input
from shoal.transport.forms import Status


@dataclass(frozen=True, slots=True)
class Letter:
    """A letter came."""

    number: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """A message came back for a letter that was sent."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Delivered:
    """A letter was acknowledged, or is not wanted."""

    number: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """The letters of a question will not leave any more, and have not left."""

    question: str


@dataclass(frozen=True, slots=True)
class Rung:
    """Moments that were asked for have come."""

    alarms: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Over:
    """The study has ended, and nothing more is to come."""

    status: Status


Heard = Input | Letter | Reply | Rung
Given = Heard | Delivered | Dropped | Over | Abort | BaseException
