"""What is folded is what any driver would have made of it, in batches of any size; and what goes wrong costs nobody else anything."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Any, ClassVar

import pytest

from coordinator_cases import HOSTED, NOW, PATIENCE, Memory, drive, hosted_of, manifest_of, peers_of
from shoal.coordinator.aggregators import aggregator_of, names_of
from shoal.coordinator.hosting import fold, milliseconds, moment
from shoal.coordinator.results import result_of
from shoal.coordinator.store.base import Ending, Folded, Held, Loaded
from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Message
from shoal.messages.codec import encode, load
from shoal.protocols.anonml.aggregator import AnonMLAggregator, Collecting
from shoal.protocols.anonml.messages import Answer as PeopleAnswer
from shoal.protocols.base import AGGREGATOR, EVERYONE, START, Abort, Effects, Finish, Outcome, Send, WakeAt, run_local
from shoal.study.anonml import script_of
from toy.protocol import Answer, Ask, Counting, Study, ToyAggregator


@cache
def local(name: str) -> Outcome:
    aggregator = aggregator_of(manifest_of(name), hosted_of(name))
    assert aggregator is not None
    return run_local(aggregator, peers_of(name), SeededEntropy(1))


@pytest.mark.parametrize("batch", [1, 3, 10**9])
@pytest.mark.parametrize("name", HOSTED)
def test_a_study_comes_to_what_the_loop_in_memory_comes_to(name: str, batch: int) -> None:
    memory, outcome = drive(name, peers_of(name), batch=batch)
    expected = local(name)
    assert (memory.rejected, outcome.rejected, outcome.failed, outcome.aborted) == ({}, [], [], {})
    assert outcome.results.keys() == expected.results.keys() - {AGGREGATOR}
    assert memory.ending is not None
    assert memory.ending.status == "done"
    assert memory.ending.result is not None
    mine, theirs = json.loads(memory.ending.result), json.loads(result_of(manifest_of(name), expected.results[AGGREGATOR]))
    # The paper's classifiers are compared on folds that the aggregator draws, from a stream of its own here.
    assert mine["counts"] == theirs["counts"] if name == "anonml paper" else mine == theirs


@pytest.mark.parametrize("name", ["anonml", "anonml phases", "anonml paper"])
def test_every_answer_is_counted_once_exactly(name: str) -> None:
    memory, _ = drive(name, peers_of(name), batch=7)
    assert memory.state is not None
    assert load(memory.state, Collecting).counted == local(name).states[AGGREGATOR].counted


def test_times_of_a_machine_are_never_early() -> None:
    assert moment(NOW) == START
    assert milliseconds(START) == NOW
    assert milliseconds(START + timedelta(microseconds=1)) == NOW + 1
    assert milliseconds(START + timedelta(microseconds=1000)) == NOW + 1


def begun(name: str = "anonml") -> tuple[Any, Memory]:
    aggregator, memory = aggregator_of(manifest_of(name), hosted_of(name)), Memory()
    memory.save(folded(aggregator, memory.loaded(NOW), name=name))
    return aggregator, memory


def folded(aggregator: Any, loaded: Loaded, now: int = NOW, name: str = "anonml") -> Folded:
    manifest = manifest_of(name)
    return fold(aggregator, loaded, now, SeededEntropy(1), names_of(manifest), partial(result_of, manifest))


def test_the_beginning_is_published_to_everyone_as_one_letter() -> None:
    _, memory = begun()
    [(to, _)] = memory.letters
    assert to is None
    assert memory.alarms == {NOW + PATIENCE}


def test_what_is_due_at_once_is_done_before_a_clock_can_be_put_back() -> None:
    """Phases in which nobody is asked: each is over as it begins."""
    manifest = manifest_of("anonml phases")
    script = script_of(manifest.study, manifest.digest)
    aggregator = AnonMLAggregator(manifest.digest, script, expected=(0,) * script.n_phases, patience=timedelta(hours=1))
    after = folded(aggregator, Memory().loaded(NOW), name="anonml phases")
    assert len(after.letters) == script.n_phases > 1
    assert after.ending is not None and min(after.alarms, default=NOW + 1) > NOW


def test_what_is_rejected_is_counted_and_its_name_is_free_again() -> None:
    aggregator, memory = begun()
    held = (Held(3, "", b"rubbish", b"a name"), Held(4, "", b"rubbish", None))
    after = folded(aggregator, Loaded(memory.state, held, ()))
    assert (after.state, after.taken, after.freed, dict(after.rejected)) == (memory.state, (3, 4), (b"a name",), {"MSG-002": 2})


def test_too_few_answers_end_a_study_without_a_result() -> None:
    aggregator, memory = begun()
    after = folded(aggregator, memory.loaded(NOW + PATIENCE), NOW + PATIENCE)
    assert after.rung == (NOW + PATIENCE,)
    assert after.ending == Ending(
        "failed", reason="0 answers came in; the study needs 20. Too few people answered in time. What they sent is spent."
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

    def started(self, state: Counting, now: datetime, entropy: Entropy) -> tuple[Counting, Effects]:
        return self._break("start", super().started(state, now, entropy))

    def received(self, state: Counting, sender: str, message: Message, now: datetime, entropy: Entropy) -> tuple[Counting, Effects]:
        return self._break(f"message of {sender}", super().received(state, sender, message, now, entropy))

    def ticked(self, state: Counting, now: datetime, entropy: Entropy) -> tuple[Counting, Effects]:
        return self._break("tick", super().ticked(state, now, entropy))


STUDY = Study(n_rounds=1, n_peers=9)
ASKED = encode(Ask(study=STUDY.digest, round=1))


def answer(number: int, sender: str = "north") -> Held:
    report = STUDY.mechanism.encode(1) + bytes(8)
    return Held(number, sender, encode(Answer(study=STUDY.digest, round=1, report=report)), f"name {number}".encode())


def toy(aggregator: ToyAggregator, held: tuple[Held, ...] = (), alarms: tuple[int, ...] = (), now: int = NOW) -> Folded:
    start = fold(ToyAggregator(STUDY), Loaded(None, (), ()), NOW, SeededEntropy(1), ("north", "south"), repr_of)
    return fold(aggregator, Loaded(start.state, held, alarms), now, SeededEntropy(1), ("north", "south"), repr_of)


def repr_of(result: object) -> bytes:
    return repr(type(result).__name__).encode()


def test_senders_are_named_as_they_are_enrolled() -> None:
    after = load(toy(ToyAggregator(STUDY), (answer(1), answer(2, "south"))).state, Counting)
    assert [sender for sender, _ in after.counted] == ["north", "south"]


def test_what_came_before_a_deadline_is_in_time_however_late_it_is_folded_in() -> None:
    deadline = NOW + 10_000
    after = toy(ToyAggregator(STUDY), (answer(1),), (deadline,), deadline + 5_000)
    state = load(after.state, Counting)
    assert (len(state.counted), len(state.late), after.ending) == (1, 0, Ending("done", b"'tuple'"))


def test_nothing_is_folded_in_after_the_end() -> None:
    ends = Broken(STUDY, "message of south", (Send(EVERYONE, Ask(study=STUDY.digest, round=1)), Finish(7)))
    after = toy(ends, (answer(1), answer(2, "south"), answer(3)), (NOW,))
    assert (after.taken, after.rung, after.ending) == ((1, 2), (), Ending("done", b"'int'"))
    assert after.letters == ((None, ASKED),)
    late = toy(Broken(STUDY, "tick", (Abort(RemoteProtocolError("PROTO-003", "It is over.")),)), (), (NOW - 1, NOW))
    assert (late.rung, late.ending) == ((NOW - 1,), Ending("failed", reason="It is over."))


@pytest.mark.parametrize("how", [ValueError("a private value"), (Send("nobody", Ask(study=STUDY.digest, round=1)),)])
def test_a_message_on_which_the_machine_fails_is_lost_alone(how: Exception | Effects) -> None:
    after = toy(Broken(STUDY, "message of south", how), (answer(1), answer(2, "south"), answer(3)))
    assert (after.taken, after.freed, dict(after.rejected), after.ending) == ((1, 2, 3), (b"name 2",), {"PROTO-005": 1}, None)
    assert [sender for sender, _ in load(after.state, Counting).counted] == ["north", "north"]


@pytest.mark.parametrize("at", ["start", "tick"])
def test_a_machine_that_fails_when_something_is_due_has_failed_and_says_no_value(at: str) -> None:
    broken = Broken(STUDY, at, ValueError("a private value"))
    state = None if at == "start" else toy(ToyAggregator(STUDY)).state
    after = fold(broken, Loaded(state, (answer(1),) if at == "start" else (), (NOW,)), NOW, SeededEntropy(1), (), repr_of)
    assert after.ending == Ending("failed", reason="The aggregator failed with ValueError, by a fault in the protocol's code.")
    assert dict(after.rejected) == {"PROTO-005": 1}
    assert after.taken == ()


def test_a_result_that_cannot_be_written_loses_the_input_that_led_to_it() -> None:
    def refuse(result: object) -> bytes:
        raise ValueError(result)

    ends = Broken(STUDY, "message of north", (Finish(7),))
    after = fold(ends, Loaded(toy(ToyAggregator(STUDY)).state, (answer(1),), ()), NOW, SeededEntropy(1), (), refuse)
    assert (after.ending, dict(after.rejected)) == (None, {"PROTO-005": 1})


def test_letters_and_alarms_go_to_those_whom_they_are_for() -> None:
    ask = Ask(study=STUDY.digest, round=1)
    writes = Broken(STUDY, "message of north", (Send("south", ask), Send(EVERYONE, ask), WakeAt(moment(NOW + 9)), WakeAt(moment(NOW + 5))))
    after = toy(writes, (answer(1), answer(2)))
    assert after.letters == (("south", ASKED), (None, ASKED)) * 2
    assert after.alarms == (NOW + 5, NOW + 9)


def test_nobody_who_is_anonymous_has_a_name_and_no_two_have_the_same() -> None:
    class Listening(AnonMLAggregator):
        senders: ClassVar[list[str]] = []

        def received(self, state: Collecting, sender: str, message: Message, now: datetime, entropy: Entropy) -> tuple[Collecting, Effects]:
            self.senders.append(sender)
            return super().received(state, sender, message, now, entropy)

    aggregator, memory = begun()
    listening = Listening(aggregator.study, aggregator.script)
    answers = [PeopleAnswer(study=aggregator.study, ticket=bytes([i]) * 32, phase=0, question=0, report=b"\0") for i in range(2)]
    held = tuple(Held(i, "north", encode(one), None) for i, one in enumerate(answers))
    folded(listening, Loaded(memory.state, held, ()))
    assert listening.senders == ["?0", "?1"]
