"""The aggregator counts each person's own answers once and in time, and rejects the rest."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.messages.codec import decode, dump, encode, load
from shoal.protocols.anonml.aggregator import (
    AnonMLAggregator,
    AnonMLAggregatorState,
    AnonMLResult,
    count_answers,
)
from shoal.protocols.anonml.messages import MESSAGES, AnonMLAnswer, AnonMLAsk
from shoal.protocols.anonml.peer import AnonMLPeer, AnonMLPeerState
from shoal.protocols.anonml.script import AnonMLScript
from shoal.protocols.base import (
    AGGREGATOR,
    EVERYONE,
    START,
    Abort,
    Effects,
    Finish,
    MemoryLedger,
    ProtocolOutcome,
    Send,
    WakeAt,
    run_local,
)
from tests.support.anonml import (
    STUDIES,
    STUDY,
    answers_sent,
    build_named_script,
    check_complete,
    make,
    plain,
    recount,
    ticket,
    ticket_for,
)
from tests.support.toy.garbage import survives_garbage

ENTROPY = SeededEntropy(1)


def opened(
    script: AnonMLScript, phase: int = 0, **options: object
) -> tuple[AnonMLAggregator, AnonMLAggregatorState]:
    """Return an aggregator with an open phase and no answers."""
    aggregator = AnonMLAggregator(STUDY, script, **options)  # type: ignore[arg-type]
    state, _ = aggregator.on_start(aggregator.initial_state(), START, ENTROPY)
    while state.phase < phase:
        state, _ = aggregator.on_tick(state, state.deadline, ENTROPY)
    return aggregator, state


def answer_to(
    script: AnonMLScript, phase: int, question: int = 0, report: bytes = b"\x01"
) -> AnonMLAnswer:
    return AnonMLAnswer(
        study=STUDY,
        ticket=ticket_for(script, phase, question),
        phase=phase,
        question=question,
        report=report,
    )


def taken(
    aggregator: AnonMLAggregator, state: AnonMLAggregatorState, message: AnonMLAnswer | AnonMLAsk
) -> AnonMLAggregatorState:
    state, effects = aggregator.on_message(state, "?1", message, START, ENTROPY)
    assert effects == ()
    return state


def test_aggregator_opens_phase_to_everyone_and_closes_it_at_deadline() -> None:
    script = build_named_script("bits")
    aggregator = AnonMLAggregator(STUDY, script, phase_timeout=timedelta(hours=1))
    state, effects = aggregator.on_start(aggregator.initial_state(), START, ENTROPY)
    deadline = START + timedelta(hours=1)
    assert effects == (
        Send(
            EVERYONE,
            AnonMLAsk(
                study=STUDY, phase=0, publication=script.publish(()), opened=START, closes=deadline
            ),
        ),
        WakeAt(deadline),
    )
    assert aggregator.on_tick(state, deadline - timedelta(seconds=1), ENTROPY) == (state, ())
    after, effects = aggregator.on_tick(state, deadline, ENTROPY)
    assert after.phase == 1
    assert isinstance(effects[0], Send)
    assert aggregator.on_tick(after, deadline, ENTROPY) == (after, ())


def test_aggregator_closes_phase_when_all_expected_answers_arrived() -> None:
    script = build_named_script("bits")
    aggregator, state = opened(
        script, expected=(2,) + (0,) * (script.n_phases - 1), phase_timeout=timedelta(hours=1)
    )
    state = taken(aggregator, state, answer_to(script, 0))
    assert aggregator.on_tick(state, START, ENTROPY) == (state, ())
    after, effects = aggregator.on_message(state, "?1", answer_to(script, 0), START, ENTROPY)
    assert after.phase == 1 and isinstance(effects[0], Send) and effects[1] == WakeAt(START)
    # Nobody can answer in the next one: it is over at once.
    assert aggregator.on_tick(after, START, ENTROPY)[0].phase == 2


def test_aggregator_with_schedule_opens_phases_at_their_times() -> None:
    """Neither complete answers nor a late tick moves a phase; only the last one ends early."""
    script, hour = build_named_script("bits"), timedelta(hours=1)
    n_phases = script.n_phases
    assert n_phases > 1
    aggregator = AnonMLAggregator(
        STUDY, script, 0, hour, (0,) * n_phases, opens=START + timedelta(minutes=5)
    )
    assert aggregator.opens is not None
    state, effects = aggregator.on_start(aggregator.initial_state(), START, ENTROPY)
    assert (state.phase, effects) == (-1, (WakeAt(aggregator.opens),))
    assert aggregator.on_tick(state, START, ENTROPY) == (state, effects)
    now = aggregator.opens + timedelta(seconds=7)
    for phase in range(n_phases):
        state, effects = aggregator.on_tick(state, now, ENTROPY)
        send, wake = effects
        assert isinstance(send, Send) and isinstance(send.message, AnonMLAsk)
        opened = aggregator.opens + phase * hour
        assert (send.message.phase, send.message.opened, send.message.closes) == (
            phase,
            opened,
            opened + hour,
        )
        if phase < n_phases - 1:
            assert wake == WakeAt(opened + hour)
            early = opened + hour - timedelta(seconds=1)
            assert aggregator.on_tick(state, early, ENTROPY) == (state, ())
            now = opened + hour + timedelta(seconds=7)
    assert wake == WakeAt(now), "all expected answers of the last phase are there"
    state, (end,) = aggregator.on_tick(state, now, ENTROPY)
    assert isinstance(end, Finish)


def test_aggregator_rejects_answers_before_start_and_after_end() -> None:
    aggregator, state = opened(build_named_script("shuffled"), minimum=0)
    over, effects = aggregator.on_tick(state, state.deadline, ENTROPY)
    assert isinstance(effects[0], Finish)
    for at in (aggregator.initial_state(), over):
        assert aggregator.on_tick(at, START + timedelta(days=9), ENTROPY) == (at, ())


@pytest.mark.untraced
@pytest.mark.parametrize("name", STUDIES)
def test_aggregator_counts_answer_with_its_question(name: str) -> None:
    script = build_named_script(name)
    aggregator, peers = make(script, 25)
    ledgers = {name: MemoryLedger() for name in peers}
    outcome = run_local(aggregator, peers, SeededEntropy(2), ledgers=ledgers)
    check_complete(script, outcome, ledgers, peers)
    learned = outcome.results[AGGREGATOR]
    assert isinstance(learned, AnonMLResult)
    state = outcome.states[AGGREGATOR]
    assert plain(state.to_tallies()) == plain(recount(script, outcome))
    assert learned.answers == count_answers(state.to_tallies())
    assert (
        sum(learned.answers)
        == len(answers_sent(outcome))
        == sum(len(peer.own_questions) for peer in peers.values())
    )
    assert learned.model.to_plain() == script.learn(
        state.to_tallies(), SeededEntropy(9)
    ).to_plain() or name.startswith("paper")


def test_aggregator_state_survives_dump_and_load() -> None:
    script = build_named_script("blocks")
    aggregator, state = opened(script, 13)
    state = taken(aggregator, state, answer_to(script, 13))
    again = load(dump(state), AnonMLAggregatorState)
    assert again == state
    assert plain(again.to_tallies()) == plain(state.to_tallies())
    assert again.to_tallies()[-1][0].n == 1


def test_aggregator_rejects_answer_to_question_of_others() -> None:
    script = build_named_script("tables")
    aggregator, state = opened(script, 12)
    own = answer_to(script, 12, 1)
    for change in (
        {"question": 0},
        {"question": 10**6},
        {"ticket": ticket_for(script, 12, 0)},
        {"phase": 3},
    ):
        with pytest.raises(RemoteProtocolError) as caught:
            taken(aggregator, state, own.replace(**change))
        assert caught.value.code == "ANONML-001"


def test_aggregator_rejects_unasked_question_and_other_messages() -> None:
    script = build_named_script("tables")
    aggregator, state = opened(script, 2)
    ask = AnonMLAsk(study=STUDY, phase=0, publication=state.publication)
    for message in (answer_to(script, 3), answer_to(script, 2).replace(phase=13), ask):
        for at in (state, aggregator.initial_state()):
            with pytest.raises(RemoteProtocolError) as caught:
                taken(aggregator, at, message)
            assert caught.value.code == "PROTO-003"


def test_aggregator_counts_late_answer_as_late() -> None:
    script = build_named_script("tables")
    aggregator, state = opened(script, 5)
    after = taken(aggregator, state, answer_to(script, 4))
    assert after.late == 1
    assert plain(after.to_tallies()) == plain(state.to_tallies())


def test_aggregator_counts_answer_after_end_as_late() -> None:
    aggregator, state = opened(build_named_script("shuffled"), minimum=0)
    over, _ = aggregator.on_tick(state, state.deadline, ENTROPY)
    assert taken(aggregator, over, answer_to(build_named_script("shuffled"), 0)).late == 1
    with pytest.raises(RemoteProtocolError):
        taken(aggregator, over, answer_to(build_named_script("shuffled"), 0).replace(phase=1))


@pytest.mark.parametrize("report", [b"", b"\x02", b"\xff", b"\x01\x00"])
def test_aggregator_blames_sender_for_report_out_of_range(report: bytes) -> None:
    script = build_named_script("bits")
    aggregator, state = opened(script, 0)
    with pytest.raises(RemoteProtocolError) as caught:
        taken(aggregator, state, answer_to(script, 0, report=report))
    assert caught.value.code == "MSG-005"


class Silent(AnonMLPeer):
    """A peer that drops out before it answers."""

    def on_message(self, state: AnonMLPeerState, *rest: object) -> tuple[AnonMLPeerState, Effects]:
        return state, ()


def test_aggregator_does_not_count_dropouts() -> None:
    script = build_named_script("tables")
    aggregator, peers = make(script, 30)
    quiet = {
        name: peer
        for name, peer in make(script, 30, kind=Silent)[1].items()
        if int(name[5:]) % 3 == 0
    }
    outcome = run_local(aggregator, {**peers, **quiet}, SeededEntropy(1))
    assert sum(outcome.results[AGGREGATOR].answers) == 20  # type: ignore[attr-defined]
    assert not outcome.failed and not outcome.rejected and not outcome.aborted


@pytest.mark.untraced
def test_aggregator_learns_without_placing_answers() -> None:
    for name in ("bits", "tables", "grids", "blocks", "paper"):
        script = build_named_script(name)
        aggregator, peers = make(script, 60)
        early = {
            name
            for name, peer in peers.items()
            if min(phase for phase, _ in peer.own_questions.values()) < 12
        }
        quiet = {
            name: peer for name, peer in make(script, 60, kind=Silent)[1].items() if name in early
        }
        outcome = run_local(aggregator, {**peers, **quiet}, SeededEntropy(1))
        learned = outcome.results[AGGREGATOR]
        assert isinstance(learned, AnonMLResult)
        assert sum(learned.answers[:12]) == 0
        assert not outcome.failed


def run_silent(script: AnonMLScript, **options: object) -> ProtocolOutcome:
    aggregator, peers = make(script, 5, kind=Silent, **options)
    return run_local(aggregator, peers, SeededEntropy(1))


@pytest.mark.parametrize("name", STUDIES)
def test_aggregator_aborts_with_too_few_answers(name: str) -> None:
    outcome = run_silent(build_named_script(name))
    assert outcome.aborted[AGGREGATOR].code == "ANONML-002"
    assert AGGREGATOR not in outcome.results and not outcome.failed
    enough = run_silent(build_named_script(name), minimum=0)
    assert isinstance(enough.results[AGGREGATOR], AnonMLResult)


def test_aggregator_minimum_is_exact() -> None:
    script = build_named_script("shuffled")
    for minimum, is_enough in ((12, True), (13, False)):
        aggregator, peers = make(script, 12, minimum=minimum)
        assert (AGGREGATOR in run_local(aggregator, peers, SeededEntropy(1)).results) == is_enough


def test_aggregator_rejects_second_answer_of_person() -> None:
    """The same bytes are dropped; other bytes for the ticket and question blame their sender."""
    script = build_named_script("shuffled")
    aggregator, peers = make(script, 6)
    honest = run_local(aggregator, peers, SeededEntropy(1))
    twin = AnonMLPeer(STUDY, script, ticket(0), *_row_of(peers["peer-1"]))
    for seed in range(1, 6):
        outcome = run_local(aggregator, {**peers, "twin": twin}, SeededEntropy(seed))
        assert sum(outcome.results[AGGREGATOR].answers) == 6  # type: ignore[attr-defined]
        assert {rejected.error.code for rejected in outcome.rejected} <= {"PROTO-003"}
        assert not outcome.failed and not outcome.aborted
        if outcome.rejected:
            break
    assert outcome.rejected
    assert not honest.rejected


def _row_of(peer: AnonMLPeer) -> tuple[dict[str, np.ndarray], np.ndarray]:
    rows = peer._row.reveal()
    return dict(rows.columns), rows.labels


class Foreign(AnonMLPeer):
    """A peer that answers a question of others."""

    def answer(self, state: AnonMLPeerState, question: str, entropy: object) -> AnonMLAnswer:
        answer = super().answer(state, question, entropy)  # type: ignore[arg-type]
        assert isinstance(answer, AnonMLAnswer)
        return answer.replace(question=(answer.question + 1) % 4)


class Broken(AnonMLPeer):
    """A peer with a report that no mechanism makes."""

    def answer(self, state: AnonMLPeerState, question: str, entropy: object) -> AnonMLAnswer:
        return super().answer(state, question, entropy).replace(report=b"\xff" * 9)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(("kind", "code"), [(Foreign, "ANONML-001"), (Broken, "MSG-005")])
def test_aggregator_rejects_liars_and_finishes(kind: type[AnonMLPeer], code: str) -> None:
    script = build_named_script("shuffled")
    aggregator, peers = make(script, 20)
    liars = {
        name: peer for name, peer in make(script, 20, kind=kind)[1].items() if name.endswith("5")
    }
    outcome = run_local(aggregator, {**peers, **liars}, SeededEntropy(1))
    assert [rejected.error.code for rejected in outcome.rejected] == [code] * 2
    assert all(rejected.sender.startswith("?") for rejected in outcome.rejected), "nobody is named"
    assert sum(outcome.results[AGGREGATOR].answers) == 18  # type: ignore[attr-defined]
    assert not outcome.failed and not outcome.aborted


@pytest.mark.untraced
@pytest.mark.parametrize("name", ["bits", "blocks", "paper"])
def test_aggregator_only_rejects_garbage(name: str) -> None:
    script = build_named_script(name)
    aggregator, peers = make(script, 40)
    outcome = run_local(aggregator, peers, SeededEntropy(1))
    messages = [
        decode(payload, MESSAGES, STUDY)
        for payload in dict.fromkeys(sent.payload for sent in outcome.sent)
    ]
    samples = (
        messages[0],
        [message for message in messages if isinstance(message, AnonMLAnswer)][-1],
    )
    states = (
        aggregator.initial_state(),
        opened(script)[1],
        opened(script, script.n_phases - 1)[1],
        outcome.states[AGGREGATOR],
    )
    assert survives_garbage(aggregator, states, samples, "?7") > 30
    assert all(len(encode(message)) < 1 << 12 for message in messages)


def test_aggregator_abort_states_that_budget_is_spent() -> None:
    aggregator, state = opened(build_named_script("shuffled"), minimum=2)
    state = taken(
        aggregator,
        state,
        answer_to(build_named_script("shuffled"), 0, 1, _cell(build_named_script("shuffled"))),
    )
    _, (ending,) = aggregator.on_tick(state, state.deadline, ENTROPY)
    assert isinstance(ending, Abort)
    assert "1 answers" in ending.error.what and "spent" in str(ending.error.why)


def _cell(script: AnonMLScript) -> bytes:
    mechanism = script.questions(0, script.publish(()))[1].mechanism
    assert mechanism is not None
    return mechanism.encode(mechanism.report(0, ENTROPY))
