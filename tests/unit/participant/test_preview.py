"""A preview: what is drawn is held, shown again as it is, and refused where the ledger refuses."""

from __future__ import annotations

import pytest

from participants import manifest_of, table_of
from shoal.crypto.roster import Identity
from shoal.entropy import SeededEntropy, SystemEntropy
from shoal.errors import BudgetError, ShoalError
from shoal.participant.peers import peer_of
from shoal.participant.preview import Preview
from shoal.protocols.base import START, Account, MemoryLedger
from shoal.protocols.pfds.messages import Tables

MANIFEST = manifest_of("pfds", 3, pfds={"n_holders": 3})


def preview(ledger: MemoryLedger, entropy: SystemEntropy | SeededEntropy | None = None) -> Preview:
    peer = peer_of(MANIFEST, table_of(30), Identity.from_seed(bytes(32)), position=1)
    account = Account(ledger, MANIFEST.digest, "rows.csv", "https://x.example", "Wind")
    return Preview(peer, account, entropy or SystemEntropy())


def test_what_is_drawn_is_held_and_drawn_once() -> None:
    ledger = MemoryLedger()
    first = preview(ledger)
    assert first.start(START) == ()
    [drawn] = first.drawn()
    assert drawn.question == "tables" and isinstance(drawn.message, Tables)
    assert ledger.totals()[0].held > 0 and ledger.totals()[0].spent == 0
    again = preview(ledger)
    again.start(START)
    assert again.drawn() == (drawn,)


def test_what_breaks_the_rules_is_dropped() -> None:
    looked = preview(MemoryLedger())
    looked.start(START)
    looked.hear(b"rubbish", START)
    assert len(looked.drawn()) == 1


def test_the_ledger_refuses_a_preview_too() -> None:
    with pytest.raises(BudgetError):
        preview(MemoryLedger(limit=0.1)).start(START)


def test_nothing_is_held_for_seeded_randomness() -> None:
    with pytest.raises(ShoalError) as refused:
        preview(MemoryLedger(), SeededEntropy(1))
    assert refused.value.code == "ENTROPY-001"
