"""Answers that a participant may see: an example before consent, sent ones after it.

`shoal.participant.session` calls these functions for ``shoal join --preview``.

A change must keep two rules. An example is a separate draw: it is made in memory, with fresh
entropy and a random ticket or position, and is neither stored nor sent. The stored draw is shown
only after the recipient has acknowledged it. A participant who could see its stored answer and then
decline, or leave, would send only answers that it likes; the answers that are sent would then
reveal more than their price says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from shoal.crypto.identity import Identity
from shoal.entropy import Entropy, require_system
from shoal.messages.base import Message
from shoal.messages.codec import decode
from shoal.participant.driver import make_participant_host
from shoal.participant.ledger_file import LedgerFile
from shoal.privacy.ledger.records import ReleaseState
from shoal.protocols.base import (
    AGGREGATOR,
    Abort,
    InputResult,
    MemoryLedger,
    OutgoingMessage,
    ProtocolOutcome,
    Received,
    Started,
)
from shoal.study.handle import StudyHandle
from shoal.study.protocol import EncodedRows, Seat
from shoal.transport.api import TICKET_BYTES

_MAX_TRIES = 8
"""Most random tickets that are tried: an example does not have all phases of a study."""


@dataclass(frozen=True, slots=True)
class ShownAnswer:
    """An answer that may be shown: question, bytes, and the message that the bytes encode."""

    question: str
    payload: bytes
    message: Message


def draw_example(
    study: StudyHandle, rows: EncodedRows, identity: Identity, entropy: Entropy, now: datetime
) -> tuple[ShownAnswer, ...]:
    """Draw answers as a participant with these rows could send them; store and send none.

    Empty if the protocol has no answer that a participant can draw without the others.

    Parameters
    ----------
    identity
        The participant's key, which a study with a roster must name.

    Privacy
    -------
    Nothing leaves, so nothing is charged. The draws are independent of those of the study.
    """
    for _ in range(_MAX_TRIES):
        answers = _draw_once(study, rows, identity, require_system(entropy), now)
        if answers or not study.protocol.has_packets:
            return answers
    return ()


def _draw_once(
    study: StudyHandle, rows: EncodedRows, identity: Identity, entropy: Entropy, now: datetime
) -> tuple[ShownAnswer, ...]:
    n_seats = len(study.seat_names or ())
    position = entropy.below(n_seats) if n_seats else None
    peer = study.make_peer(rows, Seat(identity, entropy.bytes(TICKET_BYTES), position))
    account = MemoryLedger().account(study.digest, "example", "nobody", "example")
    host = make_participant_host(peer, account, entropy, peer.initial_state())

    def run(given: Started | Received) -> Iterator[OutgoingMessage]:
        handled: InputResult = host.handle(given, now, ProtocolOutcome())
        host.commit(handled)
        for item in handled.work:
            if isinstance(item, Abort):
                raise item.error
            if isinstance(item, OutgoingMessage):
                yield item

    def read(payload: bytes) -> Message:
        return decode(payload, peer.messages, study.digest)

    outgoing = list(run(Started()))
    first = [read(item.payload) for item in outgoing if item.question is None]
    for message in study.protocol.make_example_messages(study, first):
        outgoing += run(Received(AGGREGATOR, message))
    return tuple(
        ShownAnswer(item.question, item.payload, read(item.payload))
        for item in outgoing
        if item.question is not None
    )


def list_sent_answers(study: StudyHandle, ledger: LedgerFile) -> tuple[ShownAnswer, ...]:
    """Return the stored answers of a study that the recipient has acknowledged."""
    digest = study.digest.hex()
    sent = [
        entry.release.question
        for entry in ledger.entries()
        if entry.study == digest and entry.state is ReleaseState.SENT
    ]
    payloads = [(question, ledger.read_payload(digest, question)) for question in sent]
    return tuple(
        ShownAnswer(question, payload, decode(payload, study.protocol.messages, study.digest))
        for question, payload in payloads
    )
