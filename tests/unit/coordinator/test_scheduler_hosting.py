"""`apply_inputs` gives the result of a local run, in batches of any size; failures stay local."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Any, ClassVar

import pytest

from shoal.clock import from_milliseconds, to_milliseconds
from shoal.coordinator.scheduler import apply_inputs
from shoal.coordinator.store.base import PendingInput, StepResult, StudyOutcome, StudySnapshot
from shoal.coordinator.studies import encode_result
from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Message
from shoal.messages.codec import encode, load
from shoal.protocols.anonml.aggregator import AnonMLAggregator, AnonMLAggregatorState
from shoal.protocols.anonml.messages import AnonMLAnswer as PeopleAnswer
from shoal.protocols.base import (
    AGGREGATOR,
    EVERYONE,
    START,
    Abort,
    Effects,
    Finish,
    ProtocolOutcome,
    Send,
    WakeAt,
    run_local,
)
from shoal.study.anonml import build_script
from shoal.study.handle import StudyHandle
from tests.support.coordinator import (
    HOSTED,
    NOW,
    PATIENCE,
    Memory,
    drive,
    make_aggregator,
    make_manifest,
    make_peers,
    make_record,
)
from tests.support.toy.protocol import Answer, Ask, Counting, Study, ToyAggregator


@cache
def local(name: str) -> ProtocolOutcome:
    aggregator = make_aggregator(make_manifest(name), make_record(name))
    assert aggregator is not None
    return run_local(aggregator, make_peers(name), SeededEntropy(1))


@pytest.mark.parametrize("batch", [1, 3, 10**9])
@pytest.mark.parametrize("name", HOSTED)
def test_hosted_study_gives_result_of_local_run(name: str, batch: int) -> None:
    memory, outcome = drive(name, make_peers(name), batch=batch)
    expected = local(name)
    assert (memory.rejected, outcome.rejected, outcome.failed, outcome.aborted) == ({}, [], [], {})
    assert outcome.results.keys() == expected.results.keys() - {AGGREGATOR}
    assert memory.ending is not None
    assert memory.ending.status == "done"
    assert memory.ending.result is not None
    mine, theirs = (
        json.loads(memory.ending.result),
        json.loads(encode_result(StudyHandle(make_manifest(name)), expected.results[AGGREGATOR])),
    )
    # The paper's classifiers are compared on folds that the aggregator draws, from a stream of its
    # own here.
    assert mine["counts"] == theirs["counts"] if name == "anonml paper" else mine == theirs


@pytest.mark.parametrize("name", ["anonml", "anonml phases", "anonml paper"])
def test_every_answer_is_counted_once(name: str) -> None:
    memory, _ = drive(name, make_peers(name), batch=7)
    assert memory.state is not None
    assert (
        load(memory.state, AnonMLAggregatorState).counted == local(name).states[AGGREGATOR].counted
    )


def test_alarms_are_never_early() -> None:
    assert from_milliseconds(NOW) == START
    assert to_milliseconds(START) == NOW
    assert to_milliseconds(START + timedelta(microseconds=1)) == NOW + 1
    assert to_milliseconds(START + timedelta(microseconds=1000)) == NOW + 1


def begun(name: str = "anonml") -> tuple[Any, Memory]:
    aggregator, memory = make_aggregator(make_manifest(name), make_record(name)), Memory()
    memory.save(folded(aggregator, memory.loaded(NOW), name=name))
    return aggregator, memory


def folded(
    aggregator: Any, loaded: StudySnapshot, now: int = NOW, name: str = "anonml"
) -> StepResult:
    manifest = make_manifest(name)
    return apply_inputs(
        aggregator,
        loaded,
        now,
        SeededEntropy(1),
        StudyHandle(manifest).participant_names,
        partial(encode_result, manifest),
    )


def test_start_is_broadcast_as_one_message() -> None:
    _, memory = begun()
    [(to, _)] = memory.letters
    assert to is None
    assert memory.alarms == {NOW + PATIENCE}


def test_alarms_for_now_fire_in_same_batch() -> None:
    """Phases in which nobody is asked: each is over as it begins."""
    manifest = make_manifest("anonml phases")
    script = build_script(manifest.study, manifest.digest)
    aggregator = AnonMLAggregator(
        manifest.digest, script, expected=(0,) * script.n_phases, phase_timeout=timedelta(hours=1)
    )
    after = folded(aggregator, Memory().loaded(NOW), name="anonml phases")
    assert len(after.messages) == script.n_phases > 1
    assert after.outcome is not None and min(after.alarms, default=NOW + 1) > NOW


def test_rejected_input_is_counted_and_frees_its_name() -> None:
    aggregator, memory = begun()
    held = (PendingInput(3, "", b"rubbish", b"a name"), PendingInput(4, "", b"rubbish", None))
    after = folded(aggregator, StudySnapshot(memory.state, held, ()))
    assert (after.state, after.input_numbers, after.freed_names, dict(after.rejection_counts)) == (
        memory.state,
        (3, 4),
        (b"a name",),
        {"MSG-002": 2},
    )


def test_too_few_answers_end_study_without_result() -> None:
    aggregator, memory = begun()
    after = folded(aggregator, memory.loaded(NOW + PATIENCE), NOW + PATIENCE)
    assert after.fired_alarms == (NOW + PATIENCE,)
    assert after.outcome == StudyOutcome(
        "failed",
        reason="0 answers arrived; the study needs 20. Too few people answered in time. The budget "
        "of those answers is spent.",
    )


class Broken(ToyAggregator):
    """Fails, or writes to whom it may not, as it is told."""

    def __init__(self, study: Study, at: str, how: Exception | Effects) -> None:
        super().__init__(study)
        self.at, self.how = at, how

    def _break(self, at: str, fine: tuple[Counting, Effects]) -> tuple[Counting, Effects]:
        if self.at != at:
            return fine
        if isinstance(self.how, Exception):
            raise self.how
        return fine[0], self.how

    def on_start(
        self, state: Counting, now: datetime, entropy: Entropy
    ) -> tuple[Counting, Effects]:
        return self._break("start", super().on_start(state, now, entropy))

    def on_message(
        self, state: Counting, sender: str, message: Message, now: datetime, entropy: Entropy
    ) -> tuple[Counting, Effects]:
        return self._break(
            f"message of {sender}", super().on_message(state, sender, message, now, entropy)
        )

    def on_tick(self, state: Counting, now: datetime, entropy: Entropy) -> tuple[Counting, Effects]:
        return self._break("tick", super().on_tick(state, now, entropy))


STUDY = Study(n_rounds=1, n_peers=9)
ASKED = encode(Ask(study=STUDY.digest, round=1))


def answer(number: int, sender: str = "north") -> PendingInput:
    report = STUDY.mechanism.encode(1) + bytes(8)
    return PendingInput(
        number,
        sender,
        encode(Answer(study=STUDY.digest, round=1, report=report)),
        f"name {number}".encode(),
    )


def toy(
    aggregator: ToyAggregator,
    held: tuple[PendingInput, ...] = (),
    alarms: tuple[int, ...] = (),
    now: int = NOW,
) -> StepResult:
    start = apply_inputs(
        ToyAggregator(STUDY),
        StudySnapshot(None, (), ()),
        NOW,
        SeededEntropy(1),
        ("north", "south"),
        repr_of,
    )
    return apply_inputs(
        aggregator,
        StudySnapshot(start.state, held, alarms),
        now,
        SeededEntropy(1),
        ("north", "south"),
        repr_of,
    )


def repr_of(result: object) -> bytes:
    return repr(type(result).__name__).encode()


def test_senders_have_names_of_enrolment() -> None:
    after = load(toy(ToyAggregator(STUDY), (answer(1), answer(2, "south"))).state, Counting)
    assert [sender for sender, _ in after.counted] == ["north", "south"]


def test_input_before_deadline_counts_if_applied_later() -> None:
    deadline = NOW + 10_000
    after = toy(ToyAggregator(STUDY), (answer(1),), (deadline,), deadline + 5_000)
    state = load(after.state, Counting)
    assert (len(state.counted), len(state.late), after.outcome) == (
        1,
        0,
        StudyOutcome("done", b"'tuple'"),
    )


def test_no_input_is_applied_after_end() -> None:
    ends = Broken(
        STUDY, "message of south", (Send(EVERYONE, Ask(study=STUDY.digest, round=1)), Finish(7))
    )
    after = toy(ends, (answer(1), answer(2, "south"), answer(3)), (NOW,))
    assert (after.input_numbers, after.fired_alarms, after.outcome) == (
        (1, 2),
        (),
        StudyOutcome("done", b"'int'"),
    )
    assert after.messages == ((None, ASKED),)
    late = toy(
        Broken(STUDY, "tick", (Abort(RemoteProtocolError("PROTO-003", "It is over.")),)),
        (),
        (NOW - 1, NOW),
    )
    assert (late.fired_alarms, late.outcome) == (
        (NOW - 1,),
        StudyOutcome("failed", reason="It is over."),
    )


@pytest.mark.parametrize(
    "how", [ValueError("a private value"), (Send("nobody", Ask(study=STUDY.digest, round=1)),)]
)
def test_failure_on_message_loses_only_that_message(how: Exception | Effects) -> None:
    after = toy(Broken(STUDY, "message of south", how), (answer(1), answer(2, "south"), answer(3)))
    assert (
        after.input_numbers,
        after.freed_names,
        dict(after.rejection_counts),
        after.outcome,
    ) == (
        (1, 2, 3),
        (b"name 2",),
        {"PROTO-005": 1},
        None,
    )
    assert [sender for sender, _ in load(after.state, Counting).counted] == ["north", "north"]


@pytest.mark.parametrize("at", ["start", "tick"])
def test_failure_at_alarm_fails_study_without_quoting_values(at: str) -> None:
    broken = Broken(STUDY, at, ValueError("a private value"))
    state = None if at == "start" else toy(ToyAggregator(STUDY)).state
    after = apply_inputs(
        broken,
        StudySnapshot(state, (answer(1),) if at == "start" else (), (NOW,)),
        NOW,
        SeededEntropy(1),
        (),
        repr_of,
    )
    assert after.outcome == StudyOutcome(
        "failed", reason="The aggregator failed with ValueError, by a fault in the protocol's code."
    )
    assert dict(after.rejection_counts) == {"PROTO-005": 1}
    assert after.input_numbers == ()


def test_unencodable_result_loses_its_input() -> None:
    def refuse(result: object) -> bytes:
        raise ValueError(result)

    ends = Broken(STUDY, "message of north", (Finish(7),))
    after = apply_inputs(
        ends,
        StudySnapshot(toy(ToyAggregator(STUDY)).state, (answer(1),), ()),
        NOW,
        SeededEntropy(1),
        (),
        refuse,
    )
    assert (after.outcome, dict(after.rejection_counts)) == (None, {"PROTO-005": 1})


def test_messages_and_alarms_reach_their_recipients() -> None:
    ask = Ask(study=STUDY.digest, round=1)
    writes = Broken(
        STUDY,
        "message of north",
        (
            Send("south", ask),
            Send(EVERYONE, ask),
            WakeAt(from_milliseconds(NOW + 9)),
            WakeAt(from_milliseconds(NOW + 5)),
        ),
    )
    after = toy(writes, (answer(1), answer(2)))
    assert after.messages == (("south", ASKED), (None, ASKED)) * 2
    assert after.alarms == (NOW + 5, NOW + 9)


def test_anonymous_senders_have_no_name_and_names_are_unique() -> None:
    class Listening(AnonMLAggregator):
        senders: ClassVar[list[str]] = []

        def on_message(
            self,
            state: AnonMLAggregatorState,
            sender: str,
            message: Message,
            now: datetime,
            entropy: Entropy,
        ) -> tuple[AnonMLAggregatorState, Effects]:
            self.senders.append(sender)
            return super().on_message(state, sender, message, now, entropy)

    aggregator, memory = begun()
    listening = Listening(aggregator.study, aggregator.script)
    answers = [
        PeopleAnswer(
            study=aggregator.study, ticket=bytes([i]) * 32, phase=0, question=0, report=b"\0"
        )
        for i in range(2)
    ]
    held = tuple(PendingInput(i, "north", encode(one), None) for i, one in enumerate(answers))
    folded(listening, StudySnapshot(memory.state, held, ()))
    assert listening.senders == ["?0", "?1"]
