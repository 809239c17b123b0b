"""Previews: answers are drawn once, stored, and refused if the ledger refuses."""

from __future__ import annotations

import pytest

from shoal.crypto.identity import Identity
from shoal.entropy import SeededEntropy, SystemEntropy
from shoal.errors import BudgetError, ShoalError
from shoal.participant.delivery import MailboxMessage
from shoal.participant.session import Preview
from shoal.protocols.base import START, MemoryLedger
from shoal.protocols.pfds.messages import HolderTables
from shoal.study.handle import StudyHandle
from shoal.study.protocol import Seat
from tests.support.participants import make_manifest, make_table

MANIFEST = make_manifest("pfds", 3, pfds={"n_holders": 3})


def preview(ledger: MemoryLedger, entropy: SystemEntropy | SeededEntropy | None = None) -> Preview:
    study = StudyHandle(MANIFEST)
    seat = Seat(Identity.from_seed(bytes(32)), position=1)
    peer = study.make_peer(study.encode_rows(make_table(30)), seat)
    account = ledger.account(MANIFEST.digest, "rows.csv", "https://x.example", "Wind")
    return Preview(peer, account, entropy or SystemEntropy())


def test_preview_reserves_cost_and_draws_once() -> None:
    ledger = MemoryLedger()
    first = preview(ledger)
    assert first.start(START) == ()
    [drawn] = first.list_answers()
    assert drawn.question == "tables" and isinstance(drawn.message, HolderTables)
    assert ledger.totals()[0].held > 0 and ledger.totals()[0].spent == 0
    again = preview(ledger)
    again.start(START)
    assert again.list_answers() == (drawn,)


def test_preview_drops_invalid_messages() -> None:
    looked = preview(MemoryLedger())
    looked.start(START)
    looked.receive(MailboxMessage(1, b"rubbish"), START)
    assert len(looked.list_answers()) == 1


def test_preview_is_refused_by_ledger() -> None:
    with pytest.raises(BudgetError):
        preview(MemoryLedger(limit=0.1)).start(START)


def test_preview_refuses_seeded_entropy() -> None:
    with pytest.raises(ShoalError) as refused:
        preview(MemoryLedger(), SeededEntropy(1))
    assert refused.value.code == "ENTROPY-001"
