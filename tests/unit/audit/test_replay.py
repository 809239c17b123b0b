"""Replays of peers: what is compared, and peers that reveal rows outside their reports."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

import pytest

from shoal.audit.replay import (
    REPLAYS,
    PeerRecord,
    count_replays,
    find_difference,
    list_parts,
    replay_neighbours,
)
from shoal.entropy import SeededEntropy
from shoal.errors import LocalProtocolError, RemoteProtocolError
from shoal.messages.base import Array
from shoal.privacy.events import LOCAL_PERSON, Event
from shoal.protocols.anonml.messages import MESSAGES as ANONML
from shoal.protocols.anonml.messages import AnonMLAnswer
from shoal.protocols.base import (
    START,
    Abort,
    Compute,
    Feed,
    Finish,
    Granted,
    Release,
    Send,
    Spend,
    Started,
    WakeAt,
)
from shoal.protocols.ddml.messages import MESSAGES as DDML
from shoal.protocols.ddml.messages import DDMLDraw, DDMLUpdate
from shoal.protocols.pfds.messages import MESSAGES as PFDS
from shoal.protocols.sdq.messages import MESSAGES as SDQ
from shoal.protocols.secagg.messages import SumShares

STUDY = bytes(32)
PRICE = Event("random-response", {}, LOCAL_PERSON, 1.0)


def make_answer(report=b"\x01", question=0):
    return AnonMLAnswer(study=STUDY, ticket=bytes(32), phase=0, question=question, report=report)


def make_shares(boxes):
    return SumShares(
        study=STUDY, round=0, signature=bytes(64), boxes=boxes, commitments=b"", signatures=b""
    )


class Scripted:
    """A machine that returns the effects of a function of its row and its random source."""

    messages, study = {}, STUDY

    def __init__(self, row, act):
        self.row, self.act = row, act

    def initial_state(self):
        return "state"

    def step(self, state, given, now, entropy):
        return state, self.act(self.row, given, entropy)


INPUTS = Started(), Granted("a"), Started()


def replay(act, inputs=INPUTS, n=1):
    """Replay a scripted machine with the rows 0 and 1."""

    def run(which, entropy, wrap):
        machine = wrap(Scripted(which, act))
        state = machine.initial_state()
        for given in inputs:
            state, _ = machine.step(state, given, START, entropy)

    return replay_neighbours({("row 0", "row 1"): run}, n, SeededEntropy(1))


@pytest.mark.parametrize(
    "act",
    [
        lambda row, given, entropy: (),
        lambda row, given, entropy: (Finish(row),),
        lambda row, given, entropy: (WakeAt(START),),
        lambda row, given, entropy: (Send("aggregator", DDMLDraw(study=STUDY, id=bytes(16))),),
        lambda row, given, entropy: (Release("a", make_answer(bytes([row]))),),
        lambda row, given, entropy: (Send("aggregator", make_shares(bytes([row]))),),
        lambda row, given, entropy: (
            Send("aggregator", DDMLDraw(study=STUDY, id=entropy.bytes(16)))
            if isinstance(given, Started)
            else Release("a", make_answer(entropy.bytes(1))),
        ),
    ],
    ids=["nothing", "result", "alarm", "message", "report", "sealed box", "random bits"],
)
def test_replay_of_public_parts_and_reports_has_no_leak(act):
    found = replay(act, n=3)
    assert (found.n, found.leak, found.rows) == (3, None, None)


def send_random_id_of_answer(row, given, entropy):
    """Release a report, and show its random bits in the id: the report could be undone."""
    update = DDMLUpdate(
        study=STUDY,
        id=entropy.bytes(16),
        epoch=0,
        weights=Array(element="int32", count=0, data=b""),
    )
    return (Release("a", update),) if isinstance(given, Granted) else ()


@pytest.mark.parametrize(
    ("act", "leak"),
    [
        (
            lambda row, given, entropy: (
                Send("aggregator", DDMLDraw(study=STUDY, id=bytes([row] * 16))),
            ),
            "the field id of ddml.draw",
        ),
        (
            lambda row, given, entropy: (Send(f"to {row}", DDMLDraw(study=STUDY, id=bytes(16))),),
            "the recipient of ddml.draw",
        ),
        (
            lambda row, given, entropy: (
                (Send("aggregator", DDMLDraw(study=STUDY, id=entropy.bytes(16))),) * (1 + row)
            ),
            "the end of a step of one neighbour, and the recipient of ddml.draw of the other",
        ),
        (
            lambda row, given, entropy: (Release("a", make_answer(question=row)),),
            "the field question of anonml.answer",
        ),
        (
            lambda row, given, entropy: (Release("a", make_answer(bytes(1 + row))),),
            "the size of the field report of anonml.answer",
        ),
        (
            lambda row, given, entropy: (Release(f"{row}", make_answer()),),
            "the question that anonml.answer answers",
        ),
        (
            lambda row, given, entropy: (Spend(f"{row}", PRICE),),
            "a reservation in the ledger",
        ),
        (
            lambda row, given, entropy: (WakeAt(START + timedelta(seconds=row)),),
            "the time of an alarm",
        ),
        (
            lambda row, given, entropy: (Compute("t", "argmax", 0, 2, (0,) * row),),
            "a joint computation",
        ),
        (
            lambda row, given, entropy: (Feed("t", 1, bytes([row])),),
            "an input of a joint computation",
        ),
        (
            lambda row, given, entropy: (Abort(LocalProtocolError(f"PROTO-00{1 + row}", "x")),),
            "an abort",
        ),
        (
            lambda row, given, entropy: (WakeAt(START), Finish(0)) if row else (),
            "the end of a step of one neighbour, and the time of an alarm of the other",
        ),
        (send_random_id_of_answer, "the field id of ddml.update"),
    ],
)
def test_replay_finds_what_depends_on_the_row(act, leak):
    found = replay(act, n=5)
    assert found.leak is not None and found.leak.startswith(leak)
    assert (found.n, found.rows) == (1, ("row 0", "row 1"))


def test_replay_finds_leak_in_a_tenth_of_the_runs():
    def act(row, given, entropy):
        return (WakeAt(START),) if entropy.below(10) == 0 and row else ()

    assert replay(act, inputs=(Started(),), n=REPLAYS).leak is not None


def test_replay_compares_rejections():
    def act(row, given, entropy):
        raise RemoteProtocolError(f"PROTO-00{2 + row}", "a message broke a rule")

    def run(which, entropy, wrap):
        with pytest.raises(RemoteProtocolError):
            wrap(Scripted(which, act)).step(None, Started(), START, entropy)

    found = replay_neighbours({("a", "b"): run}, 1, SeededEntropy(1))
    assert found.leak == "the rejection of a message"


def test_second_run_continues_with_reports_of_the_first():
    record = PeerRecord(1, 1, {"a": make_answer(b"\x07"), "b": make_shares(b"")})
    released = record.add(Release("a", make_answer(b"\x02", question=3)))
    assert (released.message.report, released.message.question) == (b"\x07", 3)
    assert record.add(Release("b", make_answer(b"\x02"))).message.report == b"\x02"
    assert list(record.released) == ["a", "b"]


def test_recorded_peer_has_messages_and_study_of_the_peer():
    peer = PeerRecord(1, 0, {}).wrap(SimpleNamespace(messages="m", study=b"s"))
    assert (peer.messages, peer.study) == ("m", b"s")


def test_parts_of_an_unknown_effect_are_empty():
    assert list(list_parts("an effect")) == []


def test_difference_of_equal_parts_is_none():
    parts = [("the time of an alarm", START)]
    assert find_difference(parts, list(parts)) is None


@pytest.mark.parametrize("messages", [ANONML, DDML, SDQ, PFDS])
def test_messages_that_spend_name_their_report_and_no_others_do(messages):
    for kind in messages.values():
        assert bool(kind.report_fields) == kind.spends
        assert {*kind.report_fields, *kind.sealed_fields} <= kind.model_fields.keys() - {"study"}


@pytest.mark.parametrize(("samples", "n"), [(4, 1), (60, 3), (200_000, REPLAYS)])
def test_replays_are_a_small_share_of_the_samples(samples, n):
    assert count_replays(samples) == n
