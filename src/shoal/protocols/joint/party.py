"""A party's seat in a joint computation: it seals what its own computation has for others, and opens what theirs have for it.

All frames pass through the aggregator, which is not trusted: a frame that was altered, misdirected, renumbered or taken from another
computation does not open, is refused, and changes nothing. One that comes again is dropped; one that comes too early waits until those
before it have come, since honest networks repeat and overtake.

::

    Seat(round)      before the parties are known: frames of quicker parties are kept unopened
    begin            ``Compute``, and the frames that were kept
    received         a frame: ``Feed`` in the order of its sender
    emitted          what the own computation has: a frame
    leave            it is over; keys are erased

Keys come from fresh X25519 keys of the round, which the embedding protocol has signed and exchanged. What all parties must agree on (study,
roster, round, query, program, parties, whose shares were added) is in every derivation, so that parties that were told different
things cannot open each other's frames.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from shoal.crypto.channels import Channel, channel_keys
from shoal.crypto.context import Context, Keys
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Record
from shoal.protocols.effects import AGGREGATOR, Compute, Emitted, Feed, Program, Send
from shoal.protocols.joint.messages import JointFrame
from shoal.protocols.machines import Effects

MAX_AHEAD = 64
"""Most frames of one party that may wait for an earlier one, and most of all parties that may wait for the beginning."""


@dataclass(frozen=True)
class Terms:
    """What the parties of a computation must agree on.

    Parameters
    ----------
    context
        Study, roster, round and query.
    program
        What is computed.
    parties
        Who computes, by their positions on the roster; party ``i`` is the i-th of them.
    contributors
        Whose shares were added, by their positions on the roster.
    """

    context: Context
    program: Program
    parties: tuple[int, ...]
    contributors: tuple[int, ...] = ()

    @property
    def session(self) -> Context:
        """The context of this computation alone."""
        agreed = self.context.bind("joint computation", self.program.encode(), len(self.parties), *self.parties, *self.contributors)
        return replace(self.context, query=hashlib.sha256(agreed).digest())


class Link(Record):
    """A `Channel` as it is saved."""

    key_out: Annotated[bytes, Field(repr=False)]
    key_in: Annotated[bytes, Field(repr=False)]
    sent: int = 0
    received: int = 0


class Early(Record):
    """An opened frame that waits for those before it."""

    sender: int
    number: int
    payload: Annotated[bytes, Field(repr=False)]


class Seat(Record):
    """A party's state in the computation of one round.

    Parameters
    ----------
    me
        Which party it is.
    links
        To each other party, by its number.
    early, unopened
        Frames that wait for those before them, and for the beginning.
    """

    round: int
    me: int = 0
    links: tuple[Link | None, ...] = ()
    early: tuple[Early, ...] = ()
    unopened: tuple[JointFrame, ...] = ()
    is_over: bool = False

    @property
    def task(self) -> str:
        """The name of the computation, unique in a study as rounds are."""
        return f"joint/{self.round}"


def begin(seat: Seat, terms: Terms, member: int, private: bytes, keys: Mapping[int, Keys], inputs: tuple[int, ...]) -> tuple[Seat, Effects]:
    """Take part. Once per round: a second time would use the same keys for other frames.

    Parameters
    ----------
    member
        Our own position on the roster.
    private, keys
        Our private box key of this round, and what the members published; the embedding protocol has checked their signatures.
    inputs
        Our shares.
    """
    me, session = terms.parties.index(member), terms.session
    links = tuple(None if other == member else _link(private, keys[other], session, member, other) for other in terms.parties)
    kept, seat = seat.unopened, seat.replace(me=me, links=links, unopened=())
    effects: Effects = (Compute(seat.task, terms.program, me, len(links), inputs),)
    for message in kept:
        try:
            seat, more = received(seat, message)
        except RemoteProtocolError:
            continue  # whoever is heard at this moment is not to blame for it
        effects += more
    return seat, effects


def _link(private: bytes, theirs: Keys, session: Context, member: int, other: int) -> Link:
    key_out, key_in = channel_keys(private, theirs.box, session, member, other)
    return Link(key_out=key_out, key_in=key_in)


def received(seat: Seat, message: JointFrame) -> tuple[Seat, Effects]:
    """Take a frame: feed it and those that have waited for it, keep it for later, drop what is past, or blame whoever passed it on."""
    if message.round < seat.round or (message.round == seat.round and seat.is_over):
        return seat, ()
    if message.round > seat.round:
        raise _refused(message, "is of a round that has not begun")
    if not seat.links:
        if len(seat.unopened) == MAX_AHEAD:
            raise _refused(message, "is one too many before the beginning")
        return seat.replace(unopened=(*seat.unopened, message)), ()
    link = seat.links[message.sender] if message.sender < len(seat.links) else None
    if link is None or message.to != seat.me:
        raise _refused(message, "is not from another party to this one")
    if message.number < link.received or any((early.sender, early.number) == (message.sender, message.number) for early in seat.early):
        return seat, ()
    if message.number >= link.received + MAX_AHEAD:
        raise _refused(message, f"is more than {MAX_AHEAD} frames ahead")
    try:
        _, payload = replace(Channel(**dict(link)), received=message.number).open(message.sealed)
    except RemoteProtocolError as error:
        raise _refused(message, "does not open", error.why) from None
    return _fed(
        seat.replace(early=(*seat.early, Early(sender=message.sender, number=message.number, payload=payload))), message.sender, link
    )


def _fed(seat: Seat, sender: int, link: Link) -> tuple[Seat, Effects]:
    """Feed all frames of a party that are next."""
    waiting = {early.number: early for early in seat.early if early.sender == sender}
    effects: Effects = ()
    while early := waiting.pop(link.received, None):
        effects += (Feed(seat.task, sender, early.payload),)
        link = link.replace(received=link.received + 1)
    rest = tuple(early for early in seat.early if early.sender != sender or early.number in waiting)
    return seat.replace(early=rest, links=_with(seat, sender, link)), effects


def _with(seat: Seat, party: int, link: Link) -> tuple[Link | None, ...]:
    return (*seat.links[:party], link, *seat.links[party + 1 :])


def emitted(seat: Seat, given: Emitted, study: bytes) -> tuple[Seat, Effects]:
    """Seal what the own computation has for another party, and send it to the aggregator; what is of one that was left is dropped."""
    link = seat.links[given.to] if given.task == seat.task and seat.links else None
    if link is None:
        return seat, ()
    channel, sealed = Channel(**dict(link)).seal(given.payload)
    frame = JointFrame(study=study, round=seat.round, sender=seat.me, to=given.to, number=link.sent, sealed=sealed)
    return seat.replace(links=_with(seat, given.to, link.replace(sent=channel.sent))), (Send(AGGREGATOR, frame),)


def leave(seat: Seat) -> Seat:
    """The computation is over, with or without a result: keys and frames are erased."""
    return Seat(round=seat.round, me=seat.me, is_over=True)


def recipient(message: JointFrame, sender: int, n_parties: int) -> int:
    """The party to which the aggregator passes a frame on as it is, if it comes from the party that it names.

    Parameters
    ----------
    sender
        Which party has sent it, by the aggregator's own knowledge.
    """
    if message.sender != sender or message.to == sender or message.to >= n_parties:
        raise _refused(message, f"comes from party {sender}, or is for nobody else among {n_parties}")
    return message.to


def _refused(message: JointFrame, what: str, why: str | None = None) -> RemoteProtocolError:
    return RemoteProtocolError(
        "JOINT-002", f"Frame {message.number} of round {message.round}, in the name of party {message.sender}, {what}.", why=why
    )
