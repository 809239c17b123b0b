"""Messages to everyone in a study with anonymous packets: signed, and as scheduled.

Participants and relays accept the opening of a phase with `parse_ask` only, so that both check the
same things.
"""

from __future__ import annotations

import hashlib

from shoal.errors import RemoteProtocolError
from shoal.messages.codec import check_value_count, decode
from shoal.protocols.anonml.messages import MESSAGES, AnonMLAsk
from shoal.study.handle import StudyHandle
from shoal.study.schedule import PhaseWindow
from shoal.transport.api import QueuedMessage
from shoal.transport.signing import verify_broadcast

MAX_MESSAGE_VALUES = 1 << 18
"""Most values in a message.

The longest message is AnonML's publication, with a few numbers for each feature. Rejecting a
message with this many values takes 300 MB at most.
"""


def parse_ask(study: StudyHandle, key: bytes, queued: QueuedMessage) -> AnonMLAsk:
    """Return the opening of a phase, if the coordinator signed it and its times are scheduled.

    Parameters
    ----------
    key
        The coordinator's key, which signed the manifest.

    Raises
    ------
    RemoteProtocolError
        ``AUTH-004``: the signature is missing or wrong. ``ANONML-003``: the phase or its times are
        not those of the schedule. ``PROTO-003``: it is another message.
    """
    verify_broadcast(key, study.digest, queued.number, queued.payload, queued.signature)
    check_value_count(queued.payload, MAX_MESSAGE_VALUES)
    ask = decode(queued.payload, MESSAGES, study.digest)
    if not isinstance(ask, AnonMLAsk):
        raise RemoteProtocolError("PROTO-003", "The aggregator sent an answer.")
    is_scheduled = ask.phase < (study.protocol.count_phases(study) or 0) and (
        PhaseWindow(ask.opened, ask.closes) == study.schedule.get_window(ask.phase)
    )
    if not is_scheduled:
        raise RemoteProtocolError(
            "ANONML-003",
            f"The coordinator opens phase {ask.phase} from {ask.opened:%Y-%m-%d %H:%M:%S} to "
            f"{ask.closes:%Y-%m-%d %H:%M:%S} UTC, which is not in the study's schedule.",
            why="Times that differ between participants would link packets to them.",
        )
    return ask


def hash_ask(payload: bytes) -> bytes:
    """Return the digest of the opening of a phase, which a relay publishes."""
    return hashlib.sha256(payload).digest()
