"""The host of a machine: submissions count once, and failures are limited."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

import pytest

from shoal.entropy import Entropy, SeededEntropy, SystemEntropy
from shoal.errors import IntegrityError, LocalProtocolError, RemoteProtocolError
from shoal.messages.base import Message, Registry
from shoal.messages.codec import encode
from shoal.protocols.base import (
    AGGREGATOR,
    EVERYONE,
    START,
    Abort,
    Effects,
    Host,
    MemoryLedger,
    OutgoingMessage,
    PeerState,
    ProtocolOutcome,
    Refused,
    Send,
    SentMessage,
    Started,
    Tick,
    list_recipients,
    open_hosts,
)  # fmt: skip
from tests.support.toy.protocol import Answer, Ask, Counting, Study, ToyAggregator, ToyPeer, make

STUDY = Study()


def hosts(aggregator: ToyAggregator | None = None, **peers: ToyPeer) -> dict[str, Host]:
    return open_hosts(
        aggregator or ToyAggregator(STUDY), peers or make(STUDY)[1], SeededEntropy(1), None
    )


def answer(
    sender: str, number: int = 1, padding: bytes = bytes(8), kind: type[Answer] = Answer
) -> SentMessage:
    return SentMessage(
        START,
        sender,
        AGGREGATOR,
        encode(kind(study=STUDY.digest, round=number, report=b"\x01" + padding)),
    )


def give(host: Host, *given: Any) -> tuple[ProtocolOutcome, list[Any]]:
    outcome, work = ProtocolOutcome(), []
    for one in given:
        handled = host.handle(one, START, outcome)
        host.commit(handled)
        work += handled.work
    return outcome, work


def test_host_gives_submission_to_aggregator_once() -> None:
    host = hosts()[AGGREGATOR]
    outcome, _ = give(host, Started(), *[answer("peer-0")] * 3, answer("peer-1"))
    assert [sender for sender, _ in host.state.counted] == ["peer-0", "peer-1"]
    assert not outcome.rejected


def test_host_rejects_other_bytes_under_same_name() -> None:
    host = hosts()[AGGREGATOR]
    outcome, _ = give(
        host, Started(), answer("peer-0"), answer("peer-0", padding=b"x" * 8), answer("peer-0")
    )
    assert [(r.by, r.sender, r.error.code) for r in outcome.rejected] == [
        (AGGREGATOR, "peer-0", "PROTO-003")
    ]
    assert len(host.state.counted) == 1


NO_MESSAGE = SentMessage(START, "peer-2", AGGREGATOR, b"no")


def test_outcome_counts_rejections_by_code() -> None:
    host = hosts()[AGGREGATOR]
    outcome, _ = give(
        host,
        Started(),
        answer("peer-0"),
        answer("peer-0", padding=b"x" * 8),
        answer("peer-1", number=7),
        NO_MESSAGE,
    )
    assert outcome.count_rejections() == {"PROTO-003": 2, "MSG-002": 1}


def test_host_does_not_index_rejected_submission() -> None:
    host = hosts()[AGGREGATOR]
    outcome, _ = give(host, answer("peer-0"), Started(), answer("peer-0"))
    assert len(outcome.rejected) == 1
    assert len(host.state.counted) == 1


def test_host_does_not_change_before_commit() -> None:
    host = hosts()[AGGREGATOR]
    give(host, Started())
    before = host.state
    host.handle(answer("peer-0"), START, ProtocolOutcome())
    assert (host.state, host.submissions) == (before, {})


class Ballot(Answer):
    type_name: ClassVar[str] = "toy.ballot"
    is_anonymous: ClassVar[bool] = True
    pseudonym: bytes = b""

    @property
    def submission(self) -> bytes:
        return self.pseudonym


class AnonymousAggregator(ToyAggregator):
    messages = Registry(Ask, Answer, Ballot)


def ballot(sender: str, pseudonym: bytes, report: bytes = b"\x01") -> SentMessage:
    return SentMessage(
        START,
        sender,
        AGGREGATOR,
        encode(Ballot(study=STUDY.digest, round=1, report=report + bytes(8), pseudonym=pseudonym)),
    )


def test_host_invents_new_sender_for_each_anonymous_message() -> None:
    host = hosts(AnonymousAggregator(STUDY))[AGGREGATOR]
    given = [
        ballot("peer-0", b"a"),
        ballot("peer-0", b"b"),
        ballot("peer-1", b"a"),
        ballot("peer-1", b"a", b"\x00"),
        answer("peer-2"),
    ]
    outcome, _ = give(host, Started(), *given)
    names = [sender for sender, _ in host.state.counted]
    assert len(names) == len(set(names)) == 3, (
        "the second of pseudonym a is the same ballot, whoever sends it"
    )
    assert names[2] == "peer-2"
    assert not {"peer-0", "peer-1"} & {*names, *(r.sender for r in outcome.rejected)}
    assert [r.error.code for r in outcome.rejected] == ["PROTO-003"]


def test_host_rejects_undecodable_bytes_of_sender() -> None:
    outcome, _ = give(hosts()[AGGREGATOR], SentMessage(START, "peer-1", AGGREGATOR, b"rubbish"))
    assert [(r.sender, r.error.code) for r in outcome.rejected] == [("peer-1", "MSG-002")]


class Fragile:
    """A machine with a fault of its own."""

    def on_message(self, *given: Any) -> Any:
        raise ValueError("secret value 41")


class FragileAggregator(Fragile, ToyAggregator):
    pass


class FragilePeer(Fragile, ToyPeer):
    pass


def test_host_of_aggregator_loses_only_failed_input() -> None:
    host = hosts(FragileAggregator(STUDY))[AGGREGATOR]
    outcome, work = give(host, Started(), answer("peer-1"), Tick())
    assert [(f.by, f.sender, type(f.error)) for f in outcome.failed] == [
        (AGGREGATOR, "peer-1", ValueError)
    ]
    assert not any(isinstance(item, Abort) for item in work)
    assert host.state.round == 1


def test_host_of_peer_aborts_on_failure_without_private_text() -> None:
    host = hosts(ann=FragilePeer(STUDY, 1))["ann"]
    ask = SentMessage(START, AGGREGATOR, "ann", encode(Ask(study=STUDY.digest, round=1)))
    outcome, (abort,) = give(host, ask)
    assert (abort.error.code, len(outcome.failed)) == ("PROTO-005", 1)
    assert "41" not in str(abort.error)


def test_host_treats_blame_for_other_inputs_as_failure() -> None:
    class Odd(ToyAggregator):
        def on_start(
            self, state: Counting, now: datetime, entropy: Entropy
        ) -> tuple[Counting, Effects]:
            raise RemoteProtocolError("PROTO-003", "A fault of its own.")

    outcome, _ = give(hosts(Odd(STUDY))[AGGREGATOR], Started())
    assert (outcome.rejected, [type(f.error) for f in outcome.failed]) == ([], [LocalProtocolError])


def test_host_treats_unknown_recipient_as_failure() -> None:
    class Lost(ToyAggregator):
        def on_start(
            self, state: Counting, now: datetime, entropy: Entropy
        ) -> tuple[Counting, Effects]:
            return state, (Send("nobody", Ask(study=self.study, round=1)),)

    outcome, work = give(hosts(Lost(STUDY))[AGGREGATOR], Started())
    assert [f.error.code for f in outcome.failed] == ["PROTO-001"]  # type: ignore[attr-defined]
    assert work == []


def reserved(host: Host, *questions: str) -> None:
    for question in questions:
        host.account.reserve(question, STUDY.mechanism.event())  # type: ignore[union-attr]
        host.account.store(question, question.encode())  # type: ignore[union-attr]


def test_host_sends_stored_answers_when_peer_starts() -> None:
    host = hosts()["peer-0"]
    reserved(host, "round-1", "round-2")
    _, work = give(host, Started())
    assert work == [
        OutgoingMessage(AGGREGATOR, b"round-1", "round-1"),
        OutgoingMessage(AGGREGATOR, b"round-2", "round-2"),
    ]
    assert give(host, Tick())[1] == []


def test_host_does_not_send_stored_answer_twice_at_start() -> None:
    class Eager(ToyPeer):
        def on_start(
            self, state: PeerState, now: datetime, entropy: Entropy
        ) -> tuple[PeerState, Effects]:
            return self.ask(state, "round-1")

    host = hosts(ann=Eager(STUDY, 1))["ann"]
    _, (first,) = give(host, Started())
    host.state = PeerState()
    _, (again,) = give(host, Started())
    assert again == first


def test_host_sends_nothing_when_peer_aborts_at_start() -> None:
    class Tired(ToyPeer):
        def on_start(
            self, state: PeerState, now: datetime, entropy: Entropy
        ) -> tuple[PeerState, Effects]:
            return state, (Abort(LocalProtocolError("PROTO-001", "Enough.")),)

    host = hosts(ann=Tired(STUDY, 1))["ann"]
    reserved(host, "round-1")
    assert [type(item) for item in give(host, Started())[1]] == [Abort]


def test_begin_send_returns_refused_or_abort() -> None:
    host = hosts()["peer-0"]
    reserved(host, "round-1")
    letter, outcome = OutgoingMessage(AGGREGATOR, b"?", "round-1"), ProtocolOutcome()
    assert host.begin_send(letter, START, outcome) == SentMessage(
        START, "peer-0", AGGREGATOR, b"round-1", "round-1"
    ), "the stored bytes"

    class Damaged(MemoryLedger):
        def mark_sending(self, study: str, question: str) -> bytes:
            raise IntegrityError("LEDGER-006", "The disk is failing.")

    broken = open_hosts(*make(STUDY), SeededEntropy(1), {"peer-0": Damaged()})["peer-0"]
    ending = broken.begin_send(letter, START, outcome)
    assert isinstance(ending, Abort)
    assert [f.error for f in outcome.failed] == [ending.error]

    other = hosts()["peer-0"]
    reserved(other, "round-1")
    other.account.ledger.void(STUDY.digest.hex(), "round-1")  # type: ignore[union-attr, attr-defined]
    refused = other.begin_send(letter, START, outcome)
    assert isinstance(refused, Refused)
    assert (refused.question, refused.error.code) == ("round-1", "BUDGET-005")


def test_list_recipients_returns_other_side() -> None:
    peers = ["ann", "bob"]
    assert list(list_recipients(AGGREGATOR, EVERYONE, peers)) == ["ann", "bob"]
    assert list(list_recipients(AGGREGATOR, "bob", peers)) == ["bob"]
    assert list(list_recipients("ann", AGGREGATOR, peers)) == [AGGREGATOR]
    for sender, to in (
        ("ann", "bob"),
        ("ann", EVERYONE),
        (AGGREGATOR, AGGREGATOR),
        (AGGREGATOR, "eve"),
    ):
        with pytest.raises(LocalProtocolError) as caught:
            list_recipients(sender, to, peers)
        assert caught.value.code == "PROTO-001"


@pytest.mark.parametrize("name", [AGGREGATOR, EVERYONE, "?1"])
def test_open_hosts_rejects_reserved_peer_names(name: str) -> None:
    with pytest.raises(LocalProtocolError):
        open_hosts(ToyAggregator(STUDY), {name: ToyPeer(STUDY, 1)}, SeededEntropy(1), None)


def test_host_draws_are_independent_of_other_machines() -> None:
    class Drawing(ToyPeer):
        def on_start(
            self, state: PeerState, now: datetime, entropy: Entropy
        ) -> tuple[PeerState, Effects]:
            drawn.append(entropy.word())
            return state, ()

    drawn: list[int] = []
    both = hosts(ann=Drawing(STUDY, 1), bob=Drawing(STUDY, 1))
    for name in ("ann", "bob", "ann"):
        give(both[name], Started())
    give(hosts(bob=Drawing(STUDY, 1))["bob"], Started())
    assert drawn[1] == drawn[3]
    assert len(set(drawn)) == 3


def test_host_uses_unsplittable_entropy_directly() -> None:
    entropy = SystemEntropy()
    peers: Any = make(STUDY)[1]
    assert (
        open_hosts(ToyAggregator(STUDY), peers, entropy, None)["peer-0"]._derive_entropy(0)
        is entropy
    )


def test_host_of_peer_passes_repeated_message() -> None:
    class Greeting(Ask):
        type_name: ClassVar[str] = "toy.greeting"
        is_anonymous: ClassVar[bool] = True

        @property
        def submission(self) -> bytes:
            return b"hello"

    class Greeted(ToyPeer):
        messages = Registry(Ask, Answer, Greeting)

        def on_message(
            self, state: PeerState, message: Message, now: datetime, entropy: Entropy
        ) -> tuple[PeerState, Effects]:
            greetings.append(message)
            return state, ()

    greetings: list[Message] = []
    host = hosts(ann=Greeted(STUDY, 1))["ann"]
    outcome, _ = give(
        host,
        *[SentMessage(START, AGGREGATOR, "ann", encode(Greeting(study=STUDY.digest, round=1)))] * 2,
    )
    assert (len(greetings), outcome.rejected, outcome.failed) == (2, [], [])
