"""State machine of one party; sealed frames between parties.

The peer of a protocol keeps a `PartyState` in its own state and calls the functions below. A party
seals the payloads of its computation for others, and opens the frames of theirs. All frames pass
through the aggregator, which is not trusted: a frame that was altered, misdirected, renumbered or
taken from another computation does not open, raises an error and changes nothing. A repeated frame
is dropped. A frame that arrives early waits for those before it, because honest networks repeat and
reorder messages.

::

    PartyState(round)  before the parties are known: early frames are kept unopened
    begin              ``Compute``, and the frames that were kept
    handle_frame       a frame: ``Feed`` in the order of its sender
    send_frame         a payload of this party's computation: a frame
    leave              the end; keys are erased

Keys are derived from fresh X25519 keys of the round, which the embedding protocol has signed and
exchanged. All that the parties must agree on (study, roster, round, query, program, parties,
contributors) is in every derivation, so that parties with different information cannot open each
other's frames.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from pydantic import Field

from shoal.crypto.channel import Channel, derive_channel_keys
from shoal.crypto.secagg.context import MemberPublicKeys, RoundContext
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Message, Record
from shoal.protocols.effects import AGGREGATOR, Compute, Emitted, Feed, Program, Send
from shoal.protocols.machines import Effects
from shoal.protocols.mpc.shares import MAX_PAIR_BYTES, MAX_WAITING_BYTES

MAX_SEALED = (1 << 22) + (1 << 6)
"""Most bytes of a sealed frame.

An argmax of 300 candidates takes half a megabyte, and 2,000 fit.
"""

Natural = Annotated[int, Field(ge=0)]


class JointFrame(Message):
    """A sealed payload from one party's computation to another's.

    Parties are counted from 0, and so are the frames from one party to another.
    """

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


MAX_AHEAD = 64
"""Most frames of one party that may wait for an earlier one.

It is also the most frames of all parties that may wait for the beginning.
"""


@dataclass(frozen=True)
class ComputationParameters:
    """Parameters that the parties of a computation agree on.

    Parameters
    ----------
    context
        Study, roster, round and query.
    parties
        The parties, by their positions on the roster; party ``i`` is the i-th of them.
    contributors
        The members that contributed shares, by their positions on the roster.
    """

    context: RoundContext
    program: Program
    parties: tuple[int, ...]
    contributors: tuple[int, ...] = ()

    @property
    def session(self) -> RoundContext:
        """The context of this computation alone."""
        agreed = self.context.bind(
            "joint computation",
            self.program.encode(),
            len(self.parties),
            *self.parties,
            *self.contributors,
        )
        return replace(self.context, query=hashlib.sha256(agreed).digest())


class PartyLink(Record):
    """A `Channel` as it is saved."""

    key_out: Annotated[bytes, Field(repr=False)]
    key_in: Annotated[bytes, Field(repr=False)]
    sent: int = 0
    received: int = 0


class EarlyFrame(Record):
    """An opened frame that waits for those before it."""

    sender: int
    number: int
    payload: Annotated[bytes, Field(repr=False)]


class PartyState(Record):
    """A party's state in the computation of one round.

    Parameters
    ----------
    me
        The number of this party.
    links
        The channel to each other party, by its number.
    early, unopened
        Frames that wait for those before them, and for the beginning.
    accepted
        Bytes of the accepted frames of each party, by its number.
    """

    round: int
    me: int = 0
    links: tuple[PartyLink | None, ...] = ()
    early: tuple[EarlyFrame, ...] = ()
    unopened: tuple[JointFrame, ...] = ()
    accepted: tuple[int, ...] = ()
    is_over: bool = False

    @property
    def task(self) -> str:
        """The name of the computation, unique in a study because rounds are."""
        return f"joint/{self.round}"


def begin(
    state: PartyState,
    params: ComputationParameters,
    member: int,
    private: bytes,
    keys: Mapping[int, MemberPublicKeys],
    inputs: tuple[int, ...],
) -> tuple[PartyState, Effects]:
    """Begin the computation.

    Call it once per round: a second call would use the same keys for other frames.

    Parameters
    ----------
    member
        This party's position on the roster.
    private, keys
        This party's private box key of the round, and the published keys of all parties; the
        embedding protocol has checked their signatures.
    inputs
        This party's shares.
    """
    me, session = params.parties.index(member), params.session
    links = tuple(
        None if other == member else _make_link(private, keys[other], session, member, other)
        for other in params.parties
    )
    kept, state = state.unopened, state.replace(me=me, links=links, unopened=())
    effects: Effects = (Compute(state.task, params.program, me, len(links), inputs),)
    for message in kept:
        try:
            state, more = handle_frame(state, message)
        except RemoteProtocolError:
            continue  # the sender of the current message is not at fault
        effects += more
    return state, effects


def _make_link(
    private: bytes, theirs: MemberPublicKeys, session: RoundContext, member: int, other: int
) -> PartyLink:
    key_out, key_in = derive_channel_keys(private, theirs.box, session, member, other)
    return PartyLink(key_out=key_out, key_in=key_in)


def handle_frame(state: PartyState, message: JointFrame) -> tuple[PartyState, Effects]:
    """Process a frame: feed it with those that waited for it, keep it for later, or drop it.

    Raise `RemoteProtocolError` against the aggregator for a frame that is not genuine.
    """
    if message.round < state.round or (message.round == state.round and state.is_over):
        return state, ()
    if message.round > state.round:
        raise _rejected_frame_error(message, "belongs to a round that has not begun")
    if not state.links:
        size = len(message.sealed) + sum(len(frame.sealed) for frame in state.unopened)
        if len(state.unopened) == MAX_AHEAD or size > MAX_WAITING_BYTES:
            raise _rejected_frame_error(message, "exceeds the limit of frames before the beginning")
        return state.replace(unopened=(*state.unopened, message)), ()
    link = state.links[message.sender] if message.sender < len(state.links) else None
    if link is None or message.to != state.me:
        raise _rejected_frame_error(message, "is not from another party to this one")
    if message.number < link.received or any(
        (early.sender, early.number) == (message.sender, message.number) for early in state.early
    ):
        return state, ()
    if message.number >= link.received + MAX_AHEAD:
        raise _rejected_frame_error(message, f"is more than {MAX_AHEAD} frames ahead")
    try:
        _, payload = replace(Channel(**dict(link)), received=message.number).open(message.sealed)
    except RemoteProtocolError as error:
        raise _rejected_frame_error(message, "does not open", error.why) from None
    early = EarlyFrame(sender=message.sender, number=message.number, payload=payload)
    state = _count_bytes(state, message).replace(early=(*state.early, early))
    return _feed_frames(state, message.sender, link)


def _count_bytes(state: PartyState, message: JointFrame) -> PartyState:
    """Count the bytes of a frame; raise if its sender, or all frames that wait, have too many."""
    accepted = list(state.accepted or (0,) * len(state.links))
    accepted[message.sender] += len(message.sealed)
    if accepted[message.sender] > MAX_PAIR_BYTES:
        raise _rejected_frame_error(message, f"exceeds the {MAX_PAIR_BYTES} bytes of its sender")
    if len(message.sealed) + sum(len(early.payload) for early in state.early) > MAX_WAITING_BYTES:
        raise _rejected_frame_error(message, "exceeds the limit of frames that wait")
    return state.replace(accepted=tuple(accepted))


def _feed_frames(state: PartyState, sender: int, link: PartyLink) -> tuple[PartyState, Effects]:
    """Feed all frames of a party that are next."""
    waiting = {early.number: early for early in state.early if early.sender == sender}
    effects: Effects = ()
    while early := waiting.pop(link.received, None):
        effects += (Feed(state.task, sender, early.payload),)
        link = link.replace(received=link.received + 1)
    rest = tuple(
        early for early in state.early if early.sender != sender or early.number in waiting
    )
    return state.replace(early=rest, links=_replace_link(state, sender, link)), effects


def _replace_link(state: PartyState, party: int, link: PartyLink) -> tuple[PartyLink | None, ...]:
    return (*state.links[:party], link, *state.links[party + 1 :])


def send_frame(state: PartyState, given: Emitted, study: bytes) -> tuple[PartyState, Effects]:
    """Seal a payload for another party, and send it to the aggregator.

    Payloads of an abandoned computation are dropped.
    """
    link = state.links[given.to] if given.task == state.task and state.links else None
    if link is None:
        return state, ()
    channel, sealed = Channel(**dict(link)).seal(given.payload)
    frame = JointFrame(
        study=study,
        round=state.round,
        sender=state.me,
        to=given.to,
        number=link.sent,
        sealed=sealed,
    )
    return state.replace(links=_replace_link(state, given.to, link.replace(sent=channel.sent))), (
        Send(AGGREGATOR, frame),
    )


def leave(state: PartyState) -> PartyState:
    """Return the state after the end of the computation: keys and frames are erased."""
    return PartyState(round=state.round, me=state.me, is_over=True)


def find_recipient(message: JointFrame, sender: int, n_parties: int) -> int:
    """Return the party to which the aggregator forwards a frame.

    Raise `RemoteProtocolError` if the frame does not come from the party that it names.

    Parameters
    ----------
    sender
        The party that has sent the frame, as authenticated by the aggregator.
    """
    if message.sender != sender or message.to == sender or message.to >= n_parties:
        raise _rejected_frame_error(
            message, f"was sent by party {sender}, or has no other recipient among {n_parties}"
        )
    return message.to


def _rejected_frame_error(
    message: JointFrame, what: str, why: str | None = None
) -> RemoteProtocolError:
    return RemoteProtocolError(
        "JOINT-002",
        f"Frame {message.number} of round {message.round}, in the name of party {message.sender}, "
        f"{what}.",
        why=why,
    )
