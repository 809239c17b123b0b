"""Helpers for the tests of the SDQ peer: recorded peers, asks, and rejected messages."""

from __future__ import annotations

import pytest

from shoal.errors import RemoteProtocolError
from shoal.messages.base import Message
from shoal.protocols.base import MemoryLedger
from shoal.protocols.sdq.messages import SDQAsk
from shoal.protocols.sdq.peer import SDQPeer, SDQPeerState
from shoal.protocols.sdq.script import SDQScriptState
from tests.support.machines import give
from tests.support.sdq import Logged, logged


def get_peer(name: str, i: int = 0) -> Logged:
    return logged(name)[1][f"peer-{i}"]


def make_ask(
    peer: SDQPeer, at: int = 0, course: SDQScriptState | None = None, **changes: object
) -> SDQAsk:
    return SDQAsk(study=peer.study, round=at, course=course or SDQScriptState(), **changes)  # type: ignore[arg-type]


def catch_code(
    peer: SDQPeer, state: SDQPeerState, message: Message, ledger: MemoryLedger | None = None
) -> str:
    """Return the code of the error that names the aggregator; the ledger is unchanged."""
    ledger = MemoryLedger() if ledger is None else ledger
    n = len(ledger.entries)
    with pytest.raises(RemoteProtocolError) as caught:
        give(peer, state, message, ledger)
    assert len(ledger.entries) == n
    return caught.value.code
