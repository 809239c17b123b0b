from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import cache
from typing import Any

import numpy as np
import pytest

from shoal.crypto.context import Context, Keys, box_statement, list_digest
from shoal.crypto.dealing import deal
from shoal.crypto.secure_sum import LARGEST
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array, Message
from shoal.protocols.base import EVERYONE, Send, WakeAt
from shoal.protocols.sums.gathering import Gathering
from shoal.protocols.sums.messages import SumAgreed, SumKeyList, SumKeys, SumMasked, SumShares, SumSurvivors, SumUnmask
from shoal.protocols.sums.terms import keys_statement, masked_statement, read_keys, shares_statement, unmask_statement
from toy.sums import PHASES, SENDS_IN, Bench, SumStudy

STUDY = SumStudy(n_members=5, threshold=3)
KINDS = {phase: kind for kind, phase in SENDS_IN.items()}


@cache
def honest() -> Bench:
    """A round in which member 4 drops out after it has dealt."""
    bench = Bench(STUDY)
    bench.play(gone={4: "masked"})
    return bench


def give(gathering: Gathering, i: int, message: Message) -> tuple[Gathering, Any]:
    bench = honest()
    return bench.collector.received(gathering, STUDY.names[i], message, bench.now)


@pytest.mark.parametrize(("n", "t"), [(3, 2), (3, 3), (5, 3), (10, 7)])
def test_the_sum_is_that_of_all_members(n: int, t: int) -> None:
    study = SumStudy(n_members=n, threshold=t)
    bench = Bench(study)
    for number in (1, 2):
        gathering = bench.play(number)
        assert gathering.failure is None
        assert gathering.survivors == tuple(range(n))
        assert gathering.total.tolist() == study.expected(gathering.survivors, number)
        assert all(sitting is not None and sitting.is_over for sitting in bench.sittings.values())


@pytest.mark.parametrize(("n", "t", "phase"), [(n, t, phase) for n, t in ((3, 2), (5, 3)) for phase in PHASES] + [(10, 7, "masked")])
def test_as_many_as_may_drop_out_at_any_phase_and_one_more_ends_the_round(n: int, t: int, phase: str) -> None:
    study = SumStudy(n_members=n, threshold=t)
    gathering = Bench(study).play(gone=dict.fromkeys(range(n - t), phase))
    left = tuple(range(n - t, n)) if PHASES.index(phase) <= PHASES.index("masked") else tuple(range(n))
    assert gathering.failure is None and gathering.survivors == left
    assert gathering.total.tolist() == study.expected(left, 1)

    gathering = Bench(study).play(gone=dict.fromkeys(range(n - t + 1), phase))
    assert gathering.failure is not None and gathering.failure.code == "SUM-103"
    assert f"{t - 1} members sent a {KINDS[phase].type_name}" in gathering.failure.what
    assert f"{t} of {n} are needed" in str(gathering.failure)
    assert gathering.survivors == () and gathering.vectors is None and gathering.came == ()


def test_members_may_drop_out_one_after_the_other() -> None:
    study = SumStudy(n_members=9, threshold=5)
    gathering = Bench(study).play(gone=dict(enumerate(PHASES[:4])))
    assert gathering.survivors == tuple(range(3, 9))
    assert gathering.total.tolist() == study.expected(gathering.survivors, 1)
    failure = Bench(study).play(gone=dict(enumerate(PHASES))).failure
    assert failure is not None and "4 members sent a sum.unmask" in failure.what


def test_a_failed_round_does_not_stop_the_next() -> None:
    bench = Bench(STUDY)
    for number, phase in enumerate(PHASES, 1):
        assert bench.play(number, gone=dict.fromkeys(range(3), phase)).failure is not None
    gathering = bench.play(6)
    assert gathering.total.tolist() == STUDY.expected(gathering.survivors, 6)


def test_it_waits_until_the_deadline_of_each_phase_and_not_beyond() -> None:
    bench = Bench(STUDY)
    gathering, effects = bench.collector.begin(1, STUDY.query(1), STUDY.size, bench.now)
    assert effects == (WakeAt(bench.now + STUDY.patience),)
    assert bench.collector.ticked(gathering, gathering.deadline - timedelta(microseconds=1)) == (gathering, ())
    bench.play(gone={0: "keys"}, until="shares")
    assert bench.gathering.deadline == bench.now + STUDY.patience
    over, effects = bench.collector.ticked(bench.gathering, bench.gathering.deadline)
    assert over.is_over and effects == ()
    assert bench.collector.ticked(over, over.deadline + STUDY.patience) == (over, ())


def test_boxes_go_to_each_dealer_alone() -> None:
    bench = Bench(STUDY)
    bench.play(gone={1: "shares"}, until="shares")
    gathering = bench.gathering
    for i, message in bench.pending:
        if i != 1:
            gathering, _ = bench.collector.received(gathering, STUDY.names[i], message, bench.now)
    _, effects = bench.collector.ticked(gathering, gathering.deadline)
    assert [(send.to, send.message.dealers) for send in effects if isinstance(send, Send)] == [  # type: ignore[attr-defined]
        ("peer-0", (2, 3, 4)), ("peer-2", (0, 3, 4)), ("peer-3", (0, 2, 4)), ("peer-4", (0, 2, 3)),
    ]  # fmt: skip


def test_lists_go_to_everyone() -> None:
    bench = honest()
    gathering, message = bench.heard(SumMasked, 3)
    _, effects = bench.collector.ticked(give(gathering, 3, message)[0], gathering.deadline)
    survivors = SumSurvivors(study=STUDY.digest, round=1, survivors=(0, 1, 2, 3))
    assert effects == (Send(EVERYONE, survivors), WakeAt(gathering.deadline + STUDY.patience))


@pytest.mark.parametrize("kind", list(SENDS_IN))
def test_what_comes_late_is_dropped_and_what_is_early_or_comes_twice_is_refused(kind: type[Message]) -> None:
    bench = honest()
    before, message = bench.heard(kind, 0)
    after, _ = give(before, 0, message)
    assert after != before
    with pytest.raises(RemoteProtocolError, match=r"SUM-101.*peer-0 sends a sum"):
        give(after, 0, message)
    order = (*PHASES, "over")
    later = [gathering for _, gathering, _ in bench.told if order.index(gathering.phase) > order.index(before.phase)]
    for gathering in (*later, bench.gathering, bench.collector.begin(2, STUDY.query(2), STUDY.size, bench.now)[0]):
        assert give(gathering, 0, message) == (gathering, ())
    earlier = [gathering for _, gathering, _ in bench.told if order.index(gathering.phase) < order.index(before.phase)]
    for gathering in (*earlier, before.replace(round=0)):
        with pytest.raises(RemoteProtocolError, match="SUM-101"):
            give(gathering, 0, message)


@pytest.mark.parametrize("kind", [SumShares, SumMasked, SumAgreed, SumUnmask])
def test_who_has_dropped_out_stays_out(kind: type[Message]) -> None:
    before, message = honest().heard(kind, 0)
    away = 0 if kind is SumShares else 4
    gathering = before.replace(expected=tuple(i for i in before.expected if i != away))
    with pytest.raises(RemoteProtocolError, match="SUM-101"):
        give(gathering, away, message)


def test_strangers_and_messages_of_the_other_side_are_refused() -> None:
    bench = honest()
    before, message = bench.heard(SumKeys, 0)
    with pytest.raises(RemoteProtocolError, match=r"PROTO-003.*not on the roster"):
        bench.collector.received(before, "peer-5", message, bench.now)
    with pytest.raises(RemoteProtocolError, match=r"PROTO-003.*does not send a sum.survivors"):
        give(before, 0, SumSurvivors(study=STUDY.digest, round=1, survivors=()))


# What a member may lie about: each is refused, blamed on its sender, and the round goes on without it.


def flipped(data: bytes, at: int = 5) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def signed(i: int, message: Message, statement: bytes) -> Message:
    return message.replace(signature=STUDY.identity(i).sign(statement))


def context() -> Context:
    return STUDY.terms.context(1, STUDY.query(1))


def digest() -> bytes:
    return list_digest(context(), honest().heard(SumShares, 0)[0].public_keys)


def bad_key(message: Any) -> Message:
    return signed(0, message.replace(mask=bytes(32)), keys_statement(context(), 0, Keys(bytes(32), message.box, message.commitment)))


def bad_rows(message: Any, **rows: bytes) -> Message:
    message = message.replace(**rows)
    return signed(0, message, shares_statement(context(), 0, digest(), message.boxes, message.commitments, message.signatures))


def bad_vector(message: Any, vector: Array) -> Message:
    dealers = honest().heard(SumMasked, 0)[0].dealers
    return signed(0, message.replace(vector=vector), masked_statement(context(), 0, digest(), dealers, vector.data))


def bad_shares(message: Any, shares: bytes) -> Message:
    return signed(0, message.replace(shares=shares), unmask_statement(context(), 0, shares))


LIES: dict[str, tuple[type[Message], Callable[[Any], Message], str]] = {
    "signature of keys": (SumKeys, lambda m: m.replace(signature=flipped(m.signature)), "CRYPTO-001.*member 0"),
    "another's keys": (SumKeys, lambda _: honest().heard(SumKeys, 1)[1], "CRYPTO-001.*member 0"),
    "another query": (SumKeys, lambda m: m.replace(query=bytes(32)), "SUM-101.*another query"),
    "key of small order": (SumKeys, bad_key, "CRYPTO-001.*Member 0 has published a key"),
    "signature of shares": (SumShares, lambda m: m.replace(boxes=flipped(m.boxes)), "CRYPTO-001.*member 0"),
    "a box too few": (SumShares, lambda m: bad_rows(m, boxes=m.boxes[:-1]), "MSG-005.*boxes"),
    "a commitment too many": (SumShares, lambda m: bad_rows(m, commitments=m.commitments + bytes(32)), "MSG-005.*commitments"),
    "a signature too few": (SumShares, lambda m: bad_rows(m, signatures=b""), "MSG-005.*signatures"),
    "signature of vector": (SumMasked, lambda m: m.replace(vector=Array.of(np.zeros(7, np.uint64))), "CRYPTO-001.*member 0"),
    "vector too long": (SumMasked, lambda m: bad_vector(m, Array.of(np.zeros(8, np.uint64))), "MSG-005"),
    "vector of another type": (SumMasked, lambda m: bad_vector(m, Array.of(np.zeros(7, np.int64))), "MSG-005"),
    "signature of survivors": (SumAgreed, lambda m: m.replace(signature=flipped(m.signature)), "CRYPTO-001.*member 0"),
    "another's agreement": (SumAgreed, lambda _: honest().heard(SumAgreed, 1)[1], "CRYPTO-001.*member 0"),
    "signature of shares that open": (SumUnmask, lambda m: m.replace(shares=flipped(m.shares)), "CRYPTO-001.*member 0"),
    "a share that was not dealt": (SumUnmask, lambda m: bad_shares(m, flipped(m.shares)), "CRYPTO-001.*member 0 reveals"),
    "shares of too few": (SumUnmask, lambda m: bad_shares(m, m.shares[:-68]), "MSG-005.*shares"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(LIES))
def test_a_lie_is_refused_and_blamed_and_the_round_does_without(name: str) -> None:
    kind, lie, what = LIES[name]
    before, message = honest().heard(kind, 0)
    with pytest.raises(RemoteProtocolError, match=f"(?s){what}"):
        give(before, 0, lie(message))

    bench = Bench(STUDY)
    bench.play(until=SENDS_IN[kind])
    bench.pending = [(i, message) for i, message in bench.pending if i != 0]
    bench.gone = {0: SENDS_IN[kind]}
    gathering = bench.run()
    assert gathering.failure is None and gathering.total.tolist() == STUDY.expected(gathering.survivors, 1)


def test_a_dealer_that_shares_another_seed_than_it_committed_to_is_named_in_the_end() -> None:
    """Nobody can see it before the seed is recovered; then the round is lost, and everyone knows by whom."""
    bench = Bench(STUDY)
    bench.play(until="shares")
    sitting, listed = bench.before(SumKeyList, 2)
    keys, sign = read_keys(listed), STUDY.identity(2).sign
    seen = list_digest(context(), keys)
    dealing = deal(sitting.secrets._replace(own=bytes(32)), context(), 2, keys, 3, SeededEntropy(5))
    signatures = [sign(box_statement(context(), 2, to, seen, box, dealing.commitments[to])) for to, box in dealing.boxes.items()]
    rows = (b"".join(dealing.boxes.values()), b"".join(dealing.commitments.values()), b"".join(signatures))
    signature = sign(shares_statement(context(), 2, seen, *rows))
    lie = SumShares(study=STUDY.digest, round=1, boxes=rows[0], commitments=rows[1], signatures=rows[2], signature=signature)
    bench.pending = [(i, lie if i == 2 else message) for i, message in bench.pending]
    told = bench.sittings[2]
    assert told is not None
    bench.sittings[2] = told.replace(kept=dealing.kept)
    failure = bench.run().failure
    assert failure is not None and failure.code == "CRYPTO-001"
    assert "member 2 has dealt" in failure.what


def test_a_sum_beyond_what_members_may_add_is_a_failure_and_not_a_wrapped_count() -> None:
    bench = Bench(STUDY)
    bench.play(until="masked")
    gathering = bench.gathering
    seen = list_digest(context(), gathering.public_keys)
    for at, (i, message) in enumerate(bench.pending):
        if i == 3:
            assert isinstance(message, SumMasked)
            vector = Array.of(message.vector.expect("uint64", 7) + np.uint64(LARGEST + 10**6))
            bench.pending[at] = (
                i,
                signed(3, message.replace(vector=vector), masked_statement(context(), 3, seen, gathering.dealers, vector.data)),
            )
    failure = bench.run().failure
    assert failure is not None and failure.code == "SUM-004"
