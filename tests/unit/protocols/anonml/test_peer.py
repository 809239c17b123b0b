"""A person's side: answers what its ticket says, once, whoever asks and however often."""

from __future__ import annotations

import math

import numpy as np
import pytest

from anonml_cases import STUDIES, STUDY, TWO, make, people, publications, row, script_of, ticket, ticket_for
from machine_runs import spent
from shoal.entropy import SeededEntropy
from shoal.errors import BudgetError, LocalProtocolError, RemoteProtocolError
from shoal.messages.codec import decode
from shoal.privacy.rounding import grains_up
from shoal.protocols.anonml.messages import Answer, Ask, Publication
from shoal.protocols.anonml.params import Paper
from shoal.protocols.anonml.peer import AnonMLPeer, Waiting
from shoal.protocols.anonml.population import make_script
from shoal.protocols.anonml.script import Script
from shoal.protocols.base import AGGREGATOR, START, Abort, Account, Finish, MemoryLedger, Outbound, Received, Refused, settle
from toy.garbage import survives_garbage

PERSON = row(*people(TWO, 3), 1)


def peer_of(script: Script, phase: int, question: int = 0) -> AnonMLPeer:
    return AnonMLPeer(STUDY, script, ticket_for(script, phase, question), *PERSON)


def account(ledger: MemoryLedger) -> Account:
    return Account(ledger, STUDY, "rows", AGGREGATOR, "a test")


def hear(peer: AnonMLPeer, state: Waiting, ask: Ask, ledger: MemoryLedger, seed: int = 1) -> tuple[Waiting, list[Answer], list[object]]:
    """What a peer sends, and all that it does, when it is sent something."""
    state, work = settle(peer, state, Received(AGGREGATOR, ask), START, SeededEntropy(seed), account(ledger))
    sent = [decode(item.payload, peer.messages, STUDY) for item in work if isinstance(item, Outbound)]
    assert all(isinstance(message, Answer) for message in sent)
    return state, sent, list(work)  # type: ignore[return-value]


def asks_of(script: Script) -> list[Ask]:
    return [Ask(study=STUDY, phase=phase, publication=shown) for phase, shown in enumerate(publications(script))]


@pytest.mark.parametrize("phase", [0, 11, 12, 13])
def test_a_person_answers_in_the_phase_of_its_ticket_alone(phase: int) -> None:
    script = script_of("blocks")
    peer, ledger = peer_of(script, phase), MemoryLedger()
    state = peer.initial()
    for ask in asks_of(script):
        state, sent, work = hear(peer, state, ask, ledger)
        assert [(answer.phase, answer.question, answer.ticket) for answer in sent] == [(phase, 0, peer.ticket)] * (ask.phase == phase)
        assert [item.result for item in work if isinstance(item, Finish)] == [1] * (ask.phase == phase)
    assert spent(ledger) == 0, "nothing was sent by this test"
    assert [entry.release.event.epsilon for entry in ledger.entries.values()] == [script.prices["answer"].epsilon]


def test_the_papers_peer_answers_a_bit_and_a_table_for_each_subset() -> None:
    script = script_of("paper")
    peer, ledger = peer_of(script, 4), MemoryLedger()
    state, phases = peer.initial(), []
    for ask in asks_of(script):
        state, sent, work = hear(peer, state, ask, ledger)
        phases += [answer.phase for answer in sent]
        assert any(isinstance(item, Finish) for item in work) == (ask.phase == 15)
    assert phases == [4, 15, 15]
    assert {question for _, question in ledger.entries} == {"median/age", "table/0", "table/1"} == set(peer.mine)


def test_a_second_ask_for_the_same_phase_is_not_answered_even_if_it_asks_something_else() -> None:
    script = script_of("bits")
    peer, ledger = peer_of(script, 1), MemoryLedger()
    first, other = (Ask(study=STUDY, phase=1, publication=Publication(points=(point,))) for point in (5.0, 2.0))
    state, sent, _ = hear(peer, peer.initial(), first, ledger)
    assert len(sent) == 1
    assert state.heard == (first,)
    for ask in (other, first):
        again, sent, _ = hear(peer, state, ask, ledger)
        assert (again, sent) == (state, [])


def test_a_peer_that_lost_its_state_sends_what_it_drew_whatever_it_is_asked_now() -> None:
    script = script_of("bits")
    peer, ledger = peer_of(script, 1), MemoryLedger()
    first, other = (Ask(study=STUDY, phase=1, publication=Publication(points=(point,))) for point in (5.0, 2.0))
    _, sent, _ = hear(peer, peer.initial(), first, ledger)
    for seed in range(2, 20):
        _, again, _ = hear(peer, peer.initial(), other, ledger, seed)
        assert again == sent


def test_a_peer_with_a_new_ticket_and_its_old_ledger_still_has_one_answer() -> None:
    script = script_of("blocks")
    ledger, sent = MemoryLedger(), []
    for phase in (13, 0, 12):
        peer = peer_of(script, phase)
        sent += hear(peer, peer.initial(), asks_of(script)[phase], ledger)[1]
    assert sent == [sent[0]] * 3


@pytest.mark.parametrize("name", STUDIES)
def test_what_does_not_fit_the_script_is_blamed_and_costs_nothing(name: str) -> None:
    script = script_of(name)
    peer, ledger = AnonMLPeer(STUDY, script, ticket(5), *row(*people(script.params.schema, 1), 0)), MemoryLedger()
    for phase, shown in enumerate([*publications(script), Publication()]):
        bad = shown.replace(points=(*shown.points, 1.0))
        with pytest.raises(RemoteProtocolError) as caught:
            settle(peer, peer.initial(), Received(AGGREGATOR, Ask(study=STUDY, phase=phase, publication=bad)), START, SeededEntropy(1),
                   account(ledger))  # fmt: skip
        assert caught.value.code == "MSG-005"
    assert not ledger.entries


def test_an_aggregator_that_answers_is_blamed() -> None:
    peer = peer_of(script_of("bits"), 0)
    answer = Answer(study=STUDY, ticket=bytes(32), phase=0, question=0, report=b"\0")
    with pytest.raises(RemoteProtocolError) as caught:
        peer.received(peer.initial(), answer, START, SeededEntropy(1))
    assert caught.value.code == "PROTO-003"


def test_a_question_that_is_not_the_persons_has_no_price() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        peer_of(script_of("bits"), 0).price("table/0")
    assert caught.value.code == "PROTO-002"


def test_a_ledger_that_refuses_ends_it() -> None:
    script = script_of("bits")
    peer = peer_of(script, 0)
    _, _, work = hear(peer, peer.initial(), asks_of(script)[0], MemoryLedger(limit=0.5))
    assert [type(item) for item in work] == [Abort]
    state, effects = peer.step(Waiting(asked=("answer",)), Refused("answer", BudgetError("BUDGET-002", "no")), START, SeededEntropy(1))
    assert state.asked == () and isinstance(effects[0], Abort)


def test_the_ledger_is_charged_the_price_of_the_script() -> None:
    for name in STUDIES:
        script = script_of(name)
        peer, ledger = make(script, 1)[1]["peer-0"], MemoryLedger()
        state = peer.initial()
        for ask in asks_of(script):
            state, _, work = hear(peer, state, ask, ledger)
            for item in work:
                if isinstance(item, Outbound):
                    account(ledger).mark_sending(str(item.question))
        assert spent(ledger) == sum(grains_up(price.epsilon) for price in script.prices.values())


def test_nobody_answers_without_noise() -> None:
    bare = make_script(Paper(TWO, math.inf, 300, n_partitions=1, n_subsets=1, subset_size=1), STUDY)
    with pytest.raises(LocalProtocolError) as caught:
        AnonMLPeer(STUDY, bare, ticket(0), *PERSON)
    assert caught.value.code == "PROTO-001"


def test_a_peer_does_not_show_its_row() -> None:
    peer = peer_of(script_of("bits"), 0)
    assert "Private" in repr(vars(peer)["_row"])
    assert str(PERSON[0]["height"][0]) not in repr(vars(peer))


STRANGE: dict[str, tuple[str, object]] = {
    "a category that is not declared": ("town", [2]),
    "a missing category where none may be": ("town", [-1]),
    "a missing number where none may be": ("height", [np.nan]),
    "a number below the range": ("age", [-0.1]),
    "a number above the range": ("age", [10.1]),
    "two rows": ("age", [1.0, 2.0]),
    "no row": ("age", []),
}


@pytest.mark.parametrize("fault", STRANGE)
def test_a_row_that_the_schema_would_not_encode_is_refused_before_anything_is_asked(fault: str) -> None:
    """Later its failure would tell of it; and the error does not repeat the value."""
    name, value = STRANGE[fault]
    columns, label = PERSON
    with pytest.raises(LocalProtocolError) as caught:
        AnonMLPeer(STUDY, script_of("tables"), ticket(0), {**columns, name: np.array(value)}, label)
    assert caught.value.code == "PROTO-001"
    assert "10.1" not in str(caught.value)


@pytest.mark.parametrize("label", [[-1], [2], [0, 1], []])
def test_a_label_that_is_none_of_the_classes_is_refused(label: list[int]) -> None:
    with pytest.raises(LocalProtocolError):
        AnonMLPeer(STUDY, script_of("tables"), ticket(0), PERSON[0], np.array(label, np.int64))


def test_missing_values_and_the_ends_of_a_range_are_taken() -> None:
    columns, label = PERSON
    for age in (0.0, 10.0, np.nan):
        AnonMLPeer(STUDY, script_of("tables"), ticket(0), {**columns, "age": np.array([age]), "job": np.array([-1])}, label)


@pytest.mark.untraced
@pytest.mark.parametrize("name", ["bits", "blocks", "paper"])
def test_no_garbage_does_more_than_to_be_rejected(name: str) -> None:
    script = script_of(name)
    asks = asks_of(script)
    phase = script.n_phases - 1
    peer = peer_of(script, phase, script.asked(phase, 0)[0])
    answered, sent, _ = hear(peer, peer.initial(), asks[-1], MemoryLedger())
    assert survives_garbage(peer, (peer.initial(), answered), (asks[0], asks[-1], sent[0])) > 30
