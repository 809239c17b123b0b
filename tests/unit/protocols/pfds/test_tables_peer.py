"""A holder with trust local: its tables leave once, at the study's price, whatever it is sent."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from machine_runs import before, endings, give, spent
from pfds_cases import STUDIES, BareTables, logged, pooled_rows
from pfds_sums import parted
from shoal.entropy import SeededEntropy
from shoal.errors import BudgetError, LocalProtocolError, RemoteProtocolError
from shoal.messages.codec import dump, load
from shoal.privacy.private import Private
from shoal.privacy.rounding import grains_up
from shoal.protocols.base import START, Abort, Finish, MemoryLedger, Received, Refused, Started, Tick
from shoal.protocols.pfds import local
from shoal.protocols.pfds.home import Home
from shoal.protocols.pfds.messages import Ask, Ended, SharedModel, Tables
from shoal.protocols.pfds.reader import Hearing
from shoal.protocols.pfds.tables_peer import TablesPeer
from toy.garbage import survives_garbage

PARAMS = STUDIES["local"]
ROWS = parted(PARAMS, pooled_rows(PARAMS))


def a_peer(i: int = 0) -> TablesPeer:
    return logged("local")[1][f"peer-{i}"]  # type: ignore[no-any-return]


def test_tables_are_put_to_the_ledger_at_the_start_and_sent() -> None:
    peer, ledger = a_peer(2), MemoryLedger()
    state, (message,), _ = give(peer, peer.initial(), Started(), ledger)
    assert isinstance(message, Tables) and message.submission == b"tables"
    attributes = local.attributes_of(PARAMS, peer.study, 2)
    expected = local.answer(PARAMS, ROWS[2], attributes, SeededEntropy(1))
    assert message.counts.expect("int64", len(expected)).tolist() == expected.tolist()
    assert expected.tolist() != local.count(PARAMS, ROWS[2], attributes).tolist()
    assert [question for _, question in ledger.entries] == ["tables"] and state.answered == ("tables",)
    ledger.mark_sending(peer.study.hex(), "tables")
    assert spent(ledger) == grains_up(PARAMS.epsilon)
    assert load(dump(state), Hearing) == state


def test_a_second_start_draws_nothing_and_with_a_lost_state_the_stored_bytes_are_sent() -> None:
    peer, ledger = a_peer(), MemoryLedger()
    state, (first,), _ = give(peer, peer.initial(), Started(), ledger)
    assert give(peer, state, Started(), ledger, seed=2) == (state, [], ())
    lost, (again,), _ = give(peer, peer.initial(), Started(), ledger, seed=3)
    assert again == first and lost == state and len(ledger.entries) == 1


def test_the_price_is_that_of_the_study_and_of_one_question() -> None:
    peer = a_peer()
    assert peer.price("tables") == local.price(PARAMS) and peer.price("tables").epsilon == PARAMS.epsilon
    with pytest.raises(RemoteProtocolError, match="not part of the study"):
        peer.price("calibration")


def test_nobody_answers_without_noise() -> None:
    bare = replace(PARAMS, epsilon=math.inf)
    with pytest.raises(LocalProtocolError, match="without noise"):
        TablesPeer(bare, bytes(32), 0, ROWS[0])
    peer = BareTables(bare, bytes(32), 0, ROWS[0])
    _, (message,), _ = give(peer, peer.initial(), Started())
    assert isinstance(message, Tables)
    counts = local.count(bare, ROWS[0], peer.attributes)
    assert message.counts.expect("int64", len(counts)).tolist() == counts.tolist()


def test_rows_are_private() -> None:
    assert isinstance(a_peer()._rows, Private)


def test_a_model_makes_it_finish_at_home() -> None:
    peer = a_peer()
    state, model = before(peer, SharedModel)
    over, sent, work = give(peer, state, model)
    (ending,) = endings(work)
    assert isinstance(ending, Finish) and isinstance(ending.result, Home) and not sent and over.is_over
    assert np.isfinite(ending.result.scores(ROWS[0].cells)).all()
    assert give(peer, over, Started()) == (over, [], ()), "nothing is shared after the end"
    ended, _, _ = give(peer, peer.initial(), Ended(study=peer.study))
    assert give(peer, ended, Started()) == (ended, [], ())


def test_an_aggregator_does_not_ask_nor_send_what_holders_send() -> None:
    peer, ledger = a_peer(), MemoryLedger()
    ask = Ask(study=peer.study, round=0, course=logged("sums")[0].script.start)
    state, (tables,), _ = give(peer, peer.initial(), Started(), ledger)
    for message in (ask, tables):
        with pytest.raises(RemoteProtocolError) as caught:
            give(peer, state, message, ledger)
        assert caught.value.code == "PROTO-003"
    with pytest.raises(RemoteProtocolError, match="not from the aggregator"):
        peer.step(state, Received("peer-1", Ended(study=peer.study)), START, SeededEntropy(1))
    assert give(peer, state, Tick(), ledger) == (state, [], ()) and len(ledger.entries) == 1


def test_a_ledger_that_refuses_ends_the_holder_and_nothing_leaves() -> None:
    peer, ledger = a_peer(), MemoryLedger(limit=PARAMS.epsilon)
    _, sent, work = give(peer, peer.initial(), Started(), ledger)
    assert sent == [] and [type(one) for one in endings(work)] == [Abort] and spent(ledger) == 0
    state, _, _ = give(peer, peer.initial(), Started())
    refused, sent, work = give(peer, state, Refused("tables", BudgetError("BUDGET-002", "No.")))
    assert sent == [] and refused.asked == refused.answered == () and isinstance(work[0], Abort)


def test_garbage_is_refused_or_does_nothing() -> None:
    peer = a_peer()
    state, model = before(peer, SharedModel)
    assert survives_garbage(peer, [state, peer.initial()], [model, Ended(study=peer.study, reason="Why.")]) > 0
