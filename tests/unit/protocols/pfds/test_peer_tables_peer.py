"""The local-trust peer: it sends its tables once, at the price of the study."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.errors import BudgetError, LocalProtocolError, RemoteProtocolError
from shoal.messages.codec import dump, load
from shoal.privacy.private import Private
from shoal.privacy.rounding import grains_up
from shoal.protocols.base import (
    START,
    Abort,
    Finish,
    MemoryLedger,
    Received,
    Refused,
    Started,
    Tick,
)
from shoal.protocols.pfds import tables as local
from shoal.protocols.pfds.messages import HolderTables, PFDSAsk, PFDSStudyEnd, SharedModel
from shoal.protocols.pfds.peer import LocalPeer, PFDSPeerState
from shoal.protocols.pfds.personal_model import PersonalModel
from tests.support.machines import before, endings, give, spent
from tests.support.pfds import STUDIES, BareTables, logged, parted, pooled_rows
from tests.support.toy.garbage import survives_garbage

PARAMS = STUDIES["local"]
ROWS = parted(PARAMS, pooled_rows(PARAMS))


def get_peer(i: int = 0) -> LocalPeer:
    return logged("local")[1][f"peer-{i}"]  # type: ignore[no-any-return]


def test_start_reserves_and_sends_the_tables() -> None:
    peer, ledger = get_peer(2), MemoryLedger()
    state, (message,), _ = give(peer, peer.initial_state(), Started(), ledger)
    assert isinstance(message, HolderTables) and message.submission == b"tables"
    attributes = local.assign_attributes(PARAMS, peer.study, 2)
    expected = local.draw_tables(PARAMS, ROWS[2], attributes, SeededEntropy(1))
    assert message.counts.expect("int64", len(expected)).tolist() == expected.tolist()
    assert expected.tolist() != local.count_tables(PARAMS, ROWS[2], attributes).tolist()
    assert [question for _, question in ledger.entries] == ["tables"] and state.answered == (
        "tables",
    )
    ledger.mark_sending(peer.study.hex(), "tables")
    assert spent(ledger) == grains_up(PARAMS.epsilon)
    assert load(dump(state), PFDSPeerState) == state


def test_second_start_draws_nothing_and_lost_state_resends_stored_bytes() -> None:
    peer, ledger = get_peer(), MemoryLedger()
    state, (first,), _ = give(peer, peer.initial_state(), Started(), ledger)
    assert give(peer, state, Started(), ledger, seed=2) == (state, [], ())
    lost, (again,), _ = give(peer, peer.initial_state(), Started(), ledger, seed=3)
    assert again == first and lost == state and len(ledger.entries) == 1


def test_tables_cost_the_epsilon_of_the_study() -> None:
    peer = get_peer()
    assert (
        peer.price("tables") == local.price_tables(PARAMS)
        and peer.price("tables").epsilon == PARAMS.epsilon
    )
    with pytest.raises(RemoteProtocolError, match="not part of the study"):
        peer.price("calibration")


def test_peer_rejects_noiseless_study() -> None:
    bare = replace(PARAMS, epsilon=math.inf)
    with pytest.raises(LocalProtocolError, match="without noise"):
        LocalPeer(bare, bytes(32), 0, ROWS[0])
    peer = BareTables(bare, bytes(32), 0, ROWS[0])
    _, (message,), _ = give(peer, peer.initial_state(), Started())
    assert isinstance(message, HolderTables)
    counts = local.count_tables(bare, ROWS[0], peer.attributes)
    assert message.counts.expect("int64", len(counts)).tolist() == counts.tolist()


def test_rows_are_kept_private() -> None:
    assert isinstance(get_peer()._rows, Private)


def test_published_model_finishes_the_peer_with_a_personal_model() -> None:
    peer = get_peer()
    state, model = before(peer, SharedModel)
    over, sent, work = give(peer, state, model)
    (ending,) = endings(work)
    assert (
        isinstance(ending, Finish)
        and isinstance(ending.result, PersonalModel)
        and not sent
        and over.is_over
    )
    assert np.isfinite(ending.result.compute_scores(ROWS[0].cells)).all()
    assert give(peer, over, Started()) == (over, [], ()), "nothing is shared after the end"
    ended, _, _ = give(peer, peer.initial_state(), PFDSStudyEnd(study=peer.study))
    assert give(peer, ended, Started()) == (ended, [], ())


def test_asks_and_messages_of_holders_are_rejected() -> None:
    peer, ledger = get_peer(), MemoryLedger()
    ask = PFDSAsk(study=peer.study, round=0, course=logged("sums")[0].script.initial_state)
    state, (tables,), _ = give(peer, peer.initial_state(), Started(), ledger)
    for message in (ask, tables):
        with pytest.raises(RemoteProtocolError) as caught:
            give(peer, state, message, ledger)
        assert caught.value.code == "PROTO-003"
    with pytest.raises(RemoteProtocolError, match="not from the aggregator"):
        peer.step(
            state, Received("peer-1", PFDSStudyEnd(study=peer.study)), START, SeededEntropy(1)
        )
    assert give(peer, state, Tick(), ledger) == (state, [], ()) and len(ledger.entries) == 1


def test_peer_aborts_and_sends_nothing_if_the_ledger_refuses() -> None:
    peer, ledger = get_peer(), MemoryLedger(limit=PARAMS.epsilon)
    _, sent, work = give(peer, peer.initial_state(), Started(), ledger)
    assert sent == [] and [type(one) for one in endings(work)] == [Abort] and spent(ledger) == 0
    state, _, _ = give(peer, peer.initial_state(), Started())
    refused, sent, work = give(peer, state, Refused("tables", BudgetError("BUDGET-002", "No.")))
    assert sent == [] and refused.asked == refused.answered == () and isinstance(work[0], Abort)


def test_peer_rejects_or_ignores_garbage() -> None:
    peer = get_peer()
    state, model = before(peer, SharedModel)
    assert (
        survives_garbage(
            peer,
            [state, peer.initial_state()],
            [model, PFDSStudyEnd(study=peer.study, reason="Why.")],
        )
        > 0
    )
