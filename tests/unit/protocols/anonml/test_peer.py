"""The peer answers the questions of its ticket, once, however often it is asked."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.errors import BudgetError, LocalProtocolError, RemoteProtocolError
from shoal.messages.codec import decode
from shoal.privacy.rounding import grains_up
from shoal.protocols.anonml.messages import AnonMLAnswer, AnonMLAsk, AnonMLPublication
from shoal.protocols.anonml.params import AnonMLPaperParams
from shoal.protocols.anonml.peer import AnonMLPeer, AnonMLPeerState
from shoal.protocols.anonml.script import AnonMLScript
from shoal.protocols.anonml.variants import make_script
from shoal.protocols.base import (
    AGGREGATOR,
    START,
    Abort,
    Account,
    Finish,
    MemoryLedger,
    OutgoingMessage,
    Received,
    Refused,
    run_input,
)
from tests.support.anonml import (
    STUDIES,
    STUDY,
    TWO,
    build_named_script,
    make,
    people,
    publications,
    row,
    ticket,
    ticket_for,
)
from tests.support.machines import spent
from tests.support.toy.garbage import survives_garbage

PERSON = row(*people(TWO, 3), 1)


def peer_of(script: AnonMLScript, phase: int, question: int = 0) -> AnonMLPeer:
    return AnonMLPeer(STUDY, script, ticket_for(script, phase, question), *PERSON)


def account(ledger: MemoryLedger) -> Account:
    return Account(ledger, STUDY, "rows", AGGREGATOR, "a test")


def hear(
    peer: AnonMLPeer, state: AnonMLPeerState, ask: AnonMLAsk, ledger: MemoryLedger, seed: int = 1
) -> tuple[AnonMLPeerState, list[AnonMLAnswer], list[object]]:
    """Return the messages and effects of a peer for one input."""
    state, work = run_input(
        peer, state, Received(AGGREGATOR, ask), START, SeededEntropy(seed), account(ledger)
    )
    sent = [
        decode(item.payload, peer.messages, STUDY)
        for item in work
        if isinstance(item, OutgoingMessage)
    ]
    assert all(isinstance(message, AnonMLAnswer) for message in sent)
    return state, sent, list(work)  # type: ignore[return-value]


def asks_of(script: AnonMLScript) -> list[AnonMLAsk]:
    return [
        AnonMLAsk(study=STUDY, phase=phase, publication=shown)
        for phase, shown in enumerate(publications(script))
    ]


@pytest.mark.parametrize("phase", [0, 11, 12, 13])
def test_peer_answers_only_in_phase_of_ticket(phase: int) -> None:
    script = build_named_script("blocks")
    peer, ledger = peer_of(script, phase), MemoryLedger()
    state = peer.initial_state()
    for ask in asks_of(script):
        state, sent, work = hear(peer, state, ask, ledger)
        assert [(answer.phase, answer.question, answer.ticket) for answer in sent] == [
            (phase, 0, peer.ticket)
        ] * (ask.phase == phase)
        assert [item.result for item in work if isinstance(item, Finish)] == [1] * (
            ask.phase == phase
        )
    assert spent(ledger) == 0, "nothing was sent by this test"
    assert [entry.release.event.epsilon for entry in ledger.entries.values()] == [
        script.prices["answer"].epsilon
    ]


def test_paper_peer_answers_bit_and_table_per_subset() -> None:
    script = build_named_script("paper")
    peer, ledger = peer_of(script, 4), MemoryLedger()
    state, phases = peer.initial_state(), []
    for ask in asks_of(script):
        state, sent, work = hear(peer, state, ask, ledger)
        phases += [answer.phase for answer in sent]
        assert any(isinstance(item, Finish) for item in work) == (ask.phase == 15)
    assert phases == [4, 15, 15]
    assert (
        {question for _, question in ledger.entries}
        == {"median/age", "table/0", "table/1"}
        == set(peer.own_questions)
    )


def test_peer_ignores_second_ask_of_phase_with_other_content() -> None:
    script = build_named_script("bits")
    peer, ledger = peer_of(script, 1), MemoryLedger()
    first, other = (
        AnonMLAsk(study=STUDY, phase=1, publication=AnonMLPublication(points=(point,)))
        for point in (5.0, 2.0)
    )
    state, sent, _ = hear(peer, peer.initial_state(), first, ledger)
    assert len(sent) == 1
    assert state.heard == (first,)
    for ask in (other, first):
        again, sent, _ = hear(peer, state, ask, ledger)
        assert (again, sent) == (state, [])


def test_peer_without_state_resends_stored_answer() -> None:
    script = build_named_script("bits")
    peer, ledger = peer_of(script, 1), MemoryLedger()
    first, other = (
        AnonMLAsk(study=STUDY, phase=1, publication=AnonMLPublication(points=(point,)))
        for point in (5.0, 2.0)
    )
    _, sent, _ = hear(peer, peer.initial_state(), first, ledger)
    for seed in range(2, 20):
        _, again, _ = hear(peer, peer.initial_state(), other, ledger, seed)
        assert again == sent


def test_peer_with_new_ticket_and_old_ledger_has_one_answer() -> None:
    script = build_named_script("blocks")
    ledger, sent = MemoryLedger(), []
    for phase in (13, 0, 12):
        peer = peer_of(script, phase)
        sent += hear(peer, peer.initial_state(), asks_of(script)[phase], ledger)[1]
    assert sent == [sent[0]] * 3


@pytest.mark.parametrize("name", STUDIES)
def test_peer_rejects_invalid_publication_without_cost(name: str) -> None:
    script = build_named_script(name)
    peer, ledger = (
        AnonMLPeer(STUDY, script, ticket(5), *row(*people(script.params.schema, 1), 0)),
        MemoryLedger(),
    )
    for phase, shown in enumerate([*publications(script), AnonMLPublication()]):
        bad = shown.replace(points=(*shown.points, 1.0))
        with pytest.raises(RemoteProtocolError) as caught:
            run_input(
                peer,
                peer.initial_state(),
                Received(AGGREGATOR, AnonMLAsk(study=STUDY, phase=phase, publication=bad)),
                START,
                SeededEntropy(1),
                account(ledger),
            )
        assert caught.value.code == "MSG-005"
    assert not ledger.entries


def test_peer_rejects_answer_from_aggregator() -> None:
    peer = peer_of(build_named_script("bits"), 0)
    answer = AnonMLAnswer(study=STUDY, ticket=bytes(32), phase=0, question=0, report=b"\0")
    with pytest.raises(RemoteProtocolError) as caught:
        peer.on_message(peer.initial_state(), answer, START, SeededEntropy(1))
    assert caught.value.code == "PROTO-003"


def test_peer_has_no_price_for_questions_of_others() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        peer_of(build_named_script("bits"), 0).price("table/0")
    assert caught.value.code == "PROTO-002"


def test_peer_aborts_when_ledger_refuses() -> None:
    script = build_named_script("bits")
    peer = peer_of(script, 0)
    _, _, work = hear(peer, peer.initial_state(), asks_of(script)[0], MemoryLedger(limit=0.5))
    assert [type(item) for item in work] == [Abort]
    state, effects = peer.step(
        AnonMLPeerState(asked=("answer",)),
        Refused("answer", BudgetError("BUDGET-002", "no")),
        START,
        SeededEntropy(1),
    )
    assert state.asked == () and isinstance(effects[0], Abort)


def test_ledger_is_charged_price_of_script() -> None:
    for name in STUDIES:
        script = build_named_script(name)
        peer, ledger = make(script, 1)[1]["peer-0"], MemoryLedger()
        state = peer.initial_state()
        for ask in asks_of(script):
            state, _, work = hear(peer, state, ask, ledger)
            for item in work:
                if isinstance(item, OutgoingMessage):
                    account(ledger).mark_sending(str(item.question))
        assert spent(ledger) == sum(grains_up(price.epsilon) for price in script.prices.values())


def test_peer_rejects_noiseless_study() -> None:
    bare = make_script(
        AnonMLPaperParams(TWO, math.inf, 300, n_partitions=1, n_subsets=1, subset_size=1), STUDY
    )
    with pytest.raises(LocalProtocolError) as caught:
        AnonMLPeer(STUDY, bare, ticket(0), *PERSON)
    assert caught.value.code == "PROTO-001"


def test_peer_repr_hides_row() -> None:
    peer = peer_of(build_named_script("bits"), 0)
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
def test_peer_rejects_unencodable_row_before_first_question(
    fault: str,
) -> None:
    """A later failure would reveal something; and the error does not repeat the value."""
    name, value = STRANGE[fault]
    columns, label = PERSON
    with pytest.raises(LocalProtocolError) as caught:
        AnonMLPeer(
            STUDY,
            build_named_script("tables"),
            ticket(0),
            {**columns, name: np.array(value)},
            label,
        )
    assert caught.value.code == "PROTO-001"
    assert "10.1" not in str(caught.value)


@pytest.mark.parametrize("label", [[-1], [2], [0, 1], []])
def test_peer_rejects_label_outside_classes(label: list[int]) -> None:
    with pytest.raises(LocalProtocolError):
        AnonMLPeer(
            STUDY, build_named_script("tables"), ticket(0), PERSON[0], np.array(label, np.int64)
        )


def test_peer_accepts_missing_values_and_range_ends() -> None:
    columns, label = PERSON
    for age in (0.0, 10.0, np.nan):
        AnonMLPeer(
            STUDY,
            build_named_script("tables"),
            ticket(0),
            {**columns, "age": np.array([age]), "job": np.array([-1])},
            label,
        )


@pytest.mark.untraced
@pytest.mark.parametrize("name", ["bits", "blocks", "paper"])
def test_peer_only_rejects_garbage(name: str) -> None:
    script = build_named_script(name)
    asks = asks_of(script)
    phase = script.n_phases - 1
    peer = peer_of(script, phase, script.list_question_numbers(phase, 0)[0])
    answered, sent, _ = hear(peer, peer.initial_state(), asks[-1], MemoryLedger())
    assert (
        survives_garbage(peer, (peer.initial_state(), answered), (asks[0], asks[-1], sent[0])) > 30
    )
