"""The untrusted side: counts what is a person's own, once, in time; everything else is visible and harmless."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest

from anonml_cases import STUDIES, STUDY, answers_sent, check_complete, make, plain, recount, script_of, ticket, ticket_for
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.messages.codec import decode, dump, encode, load
from shoal.protocols.anonml.aggregator import AnonMLAggregator, Collecting, Learned, answers_by_phase
from shoal.protocols.anonml.messages import MESSAGES, Answer, Ask
from shoal.protocols.anonml.peer import AnonMLPeer, Waiting
from shoal.protocols.anonml.script import Script
from shoal.protocols.base import AGGREGATOR, EVERYONE, START, Abort, Effects, Finish, MemoryLedger, Outcome, Send, WakeAt, run_local
from toy.garbage import survives_garbage

ENTROPY = SeededEntropy(1)


def opened(script: Script, phase: int = 0, **options: object) -> tuple[AnonMLAggregator, Collecting]:
    """An aggregator whose phase is open, and to which nobody has answered."""
    aggregator = AnonMLAggregator(STUDY, script, **options)  # type: ignore[arg-type]
    state, _ = aggregator.started(aggregator.initial(), START, ENTROPY)
    while state.phase < phase:
        state, _ = aggregator.ticked(state, state.deadline, ENTROPY)
    return aggregator, state


def answer_to(script: Script, phase: int, question: int = 0, report: bytes = b"\x01") -> Answer:
    return Answer(study=STUDY, ticket=ticket_for(script, phase, question), phase=phase, question=question, report=report)


def taken(aggregator: AnonMLAggregator, state: Collecting, message: Answer | Ask) -> Collecting:
    state, effects = aggregator.received(state, "?1", message, START, ENTROPY)
    assert effects == ()
    return state


def test_a_phase_is_opened_to_everyone_and_closed_when_its_time_is_up() -> None:
    script = script_of("bits")
    aggregator = AnonMLAggregator(STUDY, script, patience=timedelta(hours=1))
    state, effects = aggregator.started(aggregator.initial(), START, ENTROPY)
    deadline = START + timedelta(hours=1)
    assert effects == (
        Send(EVERYONE, Ask(study=STUDY, phase=0, publication=script.publish(()), opened=START, closes=deadline)),
        WakeAt(deadline),
    )
    assert aggregator.ticked(state, deadline - timedelta(seconds=1), ENTROPY) == (state, ())
    after, effects = aggregator.ticked(state, deadline, ENTROPY)
    assert after.phase == 1
    assert isinstance(effects[0], Send)
    assert aggregator.ticked(after, deadline, ENTROPY) == (after, ())


def test_a_phase_is_over_when_all_have_answered_who_can() -> None:
    script = script_of("bits")
    aggregator, state = opened(script, expected=(2,) + (0,) * (script.n_phases - 1), patience=timedelta(hours=1))
    state = taken(aggregator, state, answer_to(script, 0))
    assert aggregator.ticked(state, START, ENTROPY) == (state, ())
    after, effects = aggregator.received(state, "?1", answer_to(script, 0), START, ENTROPY)
    assert after.phase == 1 and isinstance(effects[0], Send) and effects[1] == WakeAt(START)
    # Nobody can answer in the next one: it is over at once.
    assert aggregator.ticked(after, START, ENTROPY)[0].phase == 2


def test_nothing_is_open_before_the_start_or_after_the_end() -> None:
    aggregator, state = opened(script_of("shuffled"), minimum=0)
    over, effects = aggregator.ticked(state, state.deadline, ENTROPY)
    assert isinstance(effects[0], Finish)
    for at in (aggregator.initial(), over):
        assert aggregator.ticked(at, START + timedelta(days=9), ENTROPY) == (at, ())


@pytest.mark.untraced
@pytest.mark.parametrize("name", STUDIES)
def test_an_answer_is_counted_with_its_question(name: str) -> None:
    script = script_of(name)
    aggregator, peers = make(script, 25)
    ledgers = {name: MemoryLedger() for name in peers}
    outcome = run_local(aggregator, peers, SeededEntropy(2), ledgers=ledgers)
    check_complete(script, outcome, ledgers, peers)
    learned = outcome.results[AGGREGATOR]
    assert isinstance(learned, Learned)
    state = outcome.states[AGGREGATOR]
    assert plain(state.tallies()) == plain(recount(script, outcome))
    assert learned.answers == answers_by_phase(state.tallies())
    assert sum(learned.answers) == len(answers_sent(outcome)) == sum(len(peer.mine) for peer in peers.values())
    assert learned.model.to_plain() == script.learn(state.tallies(), SeededEntropy(9)).to_plain() or name.startswith("paper")


def test_a_state_is_saved_and_read_back() -> None:
    script = script_of("blocks")
    aggregator, state = opened(script, 13)
    state = taken(aggregator, state, answer_to(script, 13))
    again = load(dump(state), Collecting)
    assert again == state
    assert plain(again.tallies()) == plain(state.tallies())
    assert again.tallies()[-1][0].n == 1


def test_a_question_of_somebody_else_is_not_counted() -> None:
    script = script_of("tables")
    aggregator, state = opened(script, 12)
    own = answer_to(script, 12, 1)
    for change in ({"question": 0}, {"question": 10**6}, {"ticket": ticket_for(script, 12, 0)}, {"phase": 3}):
        with pytest.raises(RemoteProtocolError) as caught:
            taken(aggregator, state, own.replace(**change))
        assert caught.value.code == "ANONML-001"


def test_what_was_not_asked_yet_or_is_no_answer_is_not_counted() -> None:
    script = script_of("tables")
    aggregator, state = opened(script, 2)
    ask = Ask(study=STUDY, phase=0, publication=state.publication)
    for message in (answer_to(script, 3), answer_to(script, 2).replace(phase=13), ask):
        for at in (state, aggregator.initial()):
            with pytest.raises(RemoteProtocolError) as caught:
                taken(aggregator, at, message)
            assert caught.value.code == "PROTO-003"


def test_a_late_answer_is_seen_and_not_counted() -> None:
    script = script_of("tables")
    aggregator, state = opened(script, 5)
    after = taken(aggregator, state, answer_to(script, 4))
    assert after.late == 1
    assert plain(after.tallies()) == plain(state.tallies())


def test_an_answer_after_the_end_is_late() -> None:
    aggregator, state = opened(script_of("shuffled"), minimum=0)
    over, _ = aggregator.ticked(state, state.deadline, ENTROPY)
    assert taken(aggregator, over, answer_to(script_of("shuffled"), 0)).late == 1
    with pytest.raises(RemoteProtocolError):
        taken(aggregator, over, answer_to(script_of("shuffled"), 0).replace(phase=1))


@pytest.mark.parametrize("report", [b"", b"\x02", b"\xff", b"\x01\x00"])
def test_a_report_out_of_range_is_blamed_on_its_sender(report: bytes) -> None:
    script = script_of("bits")
    aggregator, state = opened(script, 0)
    with pytest.raises(RemoteProtocolError) as caught:
        taken(aggregator, state, answer_to(script, 0, report=report))
    assert caught.value.code == "MSG-005"


class Silent(AnonMLPeer):
    """Drops out before it answers."""

    def received(self, state: Waiting, *rest: object) -> tuple[Waiting, Effects]:
        return state, ()


def test_who_drops_out_is_not_counted() -> None:
    script = script_of("tables")
    aggregator, peers = make(script, 30)
    quiet = {name: peer for name, peer in make(script, 30, kind=Silent)[1].items() if int(name[5:]) % 3 == 0}
    outcome = run_local(aggregator, {**peers, **quiet}, SeededEntropy(1))
    assert sum(outcome.results[AGGREGATOR].answers) == 20  # type: ignore[attr-defined]
    assert not outcome.failed and not outcome.rejected and not outcome.aborted


@pytest.mark.untraced
def test_all_who_would_place_the_quantiles_may_drop_out() -> None:
    for name in ("bits", "tables", "grids", "blocks", "paper"):
        script = script_of(name)
        aggregator, peers = make(script, 60)
        early = {name for name, peer in peers.items() if min(phase for phase, _ in peer.mine.values()) < 12}
        quiet = {name: peer for name, peer in make(script, 60, kind=Silent)[1].items() if name in early}
        outcome = run_local(aggregator, {**peers, **quiet}, SeededEntropy(1))
        learned = outcome.results[AGGREGATOR]
        assert isinstance(learned, Learned)
        assert sum(learned.answers[:12]) == 0
        assert not outcome.failed


def run_silent(script: Script, **options: object) -> Outcome:
    aggregator, peers = make(script, 5, kind=Silent, **options)
    return run_local(aggregator, peers, SeededEntropy(1))


@pytest.mark.parametrize("name", STUDIES)
def test_with_too_few_answers_there_is_no_model(name: str) -> None:
    outcome = run_silent(script_of(name))
    assert outcome.aborted[AGGREGATOR].code == "ANONML-002"
    assert AGGREGATOR not in outcome.results and not outcome.failed
    enough = run_silent(script_of(name), minimum=0)
    assert isinstance(enough.results[AGGREGATOR], Learned)


def test_the_minimum_is_exact() -> None:
    script = script_of("shuffled")
    for minimum, is_enough in ((12, True), (13, False)):
        aggregator, peers = make(script, 12, minimum=minimum)
        assert (AGGREGATOR in run_local(aggregator, peers, SeededEntropy(1)).results) == is_enough


def test_a_person_who_answers_twice_is_counted_once_and_the_second_is_rejected() -> None:
    """The same bytes again are dropped; other bytes under the same ticket and question are blamed on their sender."""
    script = script_of("shuffled")
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
    """Answers a question that is not its own."""

    def answer(self, state: Waiting, question: str, entropy: object) -> Answer:
        answer = super().answer(state, question, entropy)  # type: ignore[arg-type]
        assert isinstance(answer, Answer)
        return answer.replace(question=(answer.question + 1) % 4)


class Broken(AnonMLPeer):
    """Sends a report that no mechanism makes."""

    def answer(self, state: Waiting, question: str, entropy: object) -> Answer:
        return super().answer(state, question, entropy).replace(report=b"\xff" * 9)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(("kind", "code"), [(Foreign, "ANONML-001"), (Broken, "MSG-005")])
def test_liars_are_rejected_and_the_study_goes_on(kind: type[AnonMLPeer], code: str) -> None:
    script = script_of("shuffled")
    aggregator, peers = make(script, 20)
    liars = {name: peer for name, peer in make(script, 20, kind=kind)[1].items() if name.endswith("5")}
    outcome = run_local(aggregator, {**peers, **liars}, SeededEntropy(1))
    assert [rejected.error.code for rejected in outcome.rejected] == [code] * 2
    assert all(rejected.sender.startswith("?") for rejected in outcome.rejected), "nobody is named"
    assert sum(outcome.results[AGGREGATOR].answers) == 18  # type: ignore[attr-defined]
    assert not outcome.failed and not outcome.aborted


@pytest.mark.untraced
@pytest.mark.parametrize("name", ["bits", "blocks", "paper"])
def test_no_garbage_does_more_than_to_be_rejected(name: str) -> None:
    script = script_of(name)
    aggregator, peers = make(script, 40)
    outcome = run_local(aggregator, peers, SeededEntropy(1))
    messages = [decode(payload, MESSAGES, STUDY) for payload in dict.fromkeys(sent.payload for sent in outcome.sent)]
    samples = (messages[0], [message for message in messages if isinstance(message, Answer)][-1])
    states = (aggregator.initial(), opened(script)[1], opened(script, script.n_phases - 1)[1], outcome.states[AGGREGATOR])
    assert survives_garbage(aggregator, states, samples, "?7") > 30
    assert all(len(encode(message)) < 1 << 12 for message in messages)


def test_an_end_with_too_few_answers_says_that_they_are_spent() -> None:
    aggregator, state = opened(script_of("shuffled"), minimum=2)
    state = taken(aggregator, state, answer_to(script_of("shuffled"), 0, 1, _cell(script_of("shuffled"))))
    _, (ending,) = aggregator.ticked(state, state.deadline, ENTROPY)
    assert isinstance(ending, Abort)
    assert "1 answers" in ending.error.what and "spent" in str(ending.error.why)


def _cell(script: Script) -> bytes:
    mechanism = script.questions(0, script.publish(()))[1].mechanism
    assert mechanism is not None
    return mechanism.encode(mechanism.report(0, ENTROPY))
