from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import cache
from typing import Any

import numpy as np
import pytest

from shoal.crypto.secagg.context import (
    MemberPublicKeys,
    RoundContext,
    digest_key_list,
    encode_box_statement,
)
from shoal.crypto.secagg.key_shares import share_keys
from shoal.crypto.secagg.masking import MAX_SUM
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array, Message
from shoal.protocols.base import EVERYONE, Send, WakeAt
from shoal.protocols.secagg.collector import CollectorState
from shoal.protocols.secagg.messages import (
    SumAgreed,
    SumKeyList,
    SumKeys,
    SumMasked,
    SumShares,
    SumSurvivors,
    SumUnmask,
    keys_statement,
    masked_statement,
    read_keys,
    shares_statement,
    unmask_statement,
)
from tests.support.toy.sums import PHASES, SENDS_IN, Bench, SumStudy

STUDY = SumStudy(n_members=5, threshold=3)
KINDS = {phase: kind for kind, phase in SENDS_IN.items()}


@cache
def honest() -> Bench:
    """Return a round in which member 4 drops out after it has shared its secrets."""
    bench = Bench(STUDY)
    bench.play(gone={4: "masked"})
    return bench


def give(gathering: CollectorState, i: int, message: Message) -> tuple[CollectorState, Any]:
    bench = honest()
    return bench.collector.handle_message(gathering, STUDY.names[i], message, bench.now)


@pytest.mark.parametrize(("n", "t"), [(3, 2), (3, 3), (5, 3), (10, 7)])
def test_collector_sums_vectors_of_all_members(n: int, t: int) -> None:
    study = SumStudy(n_members=n, threshold=t)
    bench = Bench(study)
    for number in (1, 2):
        gathering = bench.play(number)
        assert gathering.failure is None
        assert gathering.survivors == tuple(range(n))
        assert gathering.total.tolist() == study.expected(gathering.survivors, number)
        assert all(sitting is not None and sitting.is_over for sitting in bench.sittings.values())


@pytest.mark.parametrize(
    ("n", "t", "phase"),
    [(n, t, phase) for n, t in ((3, 2), (5, 3)) for phase in PHASES] + [(10, 7, "masked")],
)
def test_collector_tolerates_n_minus_t_dropouts_and_fails_at_one_more(
    n: int, t: int, phase: str
) -> None:
    study = SumStudy(n_members=n, threshold=t)
    gathering = Bench(study).play(gone=dict.fromkeys(range(n - t), phase))
    left = (
        tuple(range(n - t, n)) if PHASES.index(phase) <= PHASES.index("masked") else tuple(range(n))
    )
    assert gathering.failure is None and gathering.survivors == left
    assert gathering.total.tolist() == study.expected(left, 1)

    gathering = Bench(study).play(gone=dict.fromkeys(range(n - t + 1), phase))
    assert gathering.failure is not None and gathering.failure.code == "SUM-103"
    assert f"{t - 1} members sent a {KINDS[phase].type_name}" in gathering.failure.what
    assert f"{t} of {n} are needed" in str(gathering.failure)
    assert gathering.survivors == () and gathering.vectors is None and gathering.came == ()


def test_collector_tolerates_dropouts_in_different_phases() -> None:
    study = SumStudy(n_members=9, threshold=5)
    gathering = Bench(study).play(gone=dict(enumerate(PHASES[:4])))
    assert gathering.survivors == tuple(range(3, 9))
    assert gathering.total.tolist() == study.expected(gathering.survivors, 1)
    failure = Bench(study).play(gone=dict(enumerate(PHASES))).failure
    assert failure is not None and "4 members sent a sum.unmask" in failure.what


def test_collector_runs_round_after_failed_round() -> None:
    bench = Bench(STUDY)
    for number, phase in enumerate(PHASES, 1):
        assert bench.play(number, gone=dict.fromkeys(range(3), phase)).failure is not None
    gathering = bench.play(6)
    assert gathering.total.tolist() == STUDY.expected(gathering.survivors, 6)


def test_collector_waits_until_deadline_of_each_phase() -> None:
    bench = Bench(STUDY)
    gathering, effects = bench.collector.begin(1, STUDY.query(1), STUDY.size, bench.now)
    assert effects == (WakeAt(bench.now + STUDY.phase_timeout),)
    assert bench.collector.handle_tick(
        gathering, gathering.deadline - timedelta(microseconds=1)
    ) == (gathering, ())
    bench.play(gone={0: "keys"}, until="shares")
    assert bench.gathering.deadline == bench.now + STUDY.phase_timeout
    over, effects = bench.collector.handle_tick(bench.gathering, bench.gathering.deadline)
    assert over.is_over and effects == ()
    assert bench.collector.handle_tick(over, over.deadline + STUDY.phase_timeout) == (over, ())


def test_collector_sends_boxes_to_each_dealer() -> None:
    bench = Bench(STUDY)
    bench.play(gone={1: "shares"}, until="shares")
    gathering = bench.gathering
    for i, message in bench.pending:
        if i != 1:
            gathering, _ = bench.collector.handle_message(
                gathering, STUDY.names[i], message, bench.now
            )
    _, effects = bench.collector.handle_tick(gathering, gathering.deadline)
    assert [(send.to, send.message.dealers) for send in effects if isinstance(send, Send)] == [  # type: ignore[attr-defined]
        ("peer-0", (2, 3, 4)), ("peer-2", (0, 3, 4)), ("peer-3", (0, 2, 4)), ("peer-4", (0, 2, 3)),
    ]  # fmt: skip


def test_collector_sends_lists_to_everyone() -> None:
    bench = honest()
    gathering, message = bench.heard(SumMasked, 3)
    _, effects = bench.collector.handle_tick(give(gathering, 3, message)[0], gathering.deadline)
    survivors = SumSurvivors(study=STUDY.digest, round=1, survivors=(0, 1, 2, 3))
    assert effects == (Send(EVERYONE, survivors), WakeAt(gathering.deadline + STUDY.phase_timeout))


@pytest.mark.parametrize("kind", list(SENDS_IN))
def test_collector_drops_late_and_rejects_early_and_repeated_messages(
    kind: type[Message],
) -> None:
    bench = honest()
    before, message = bench.heard(kind, 0)
    after, _ = give(before, 0, message)
    assert after != before
    with pytest.raises(RemoteProtocolError, match=r"SUM-101.*peer-0 sent a sum"):
        give(after, 0, message)
    order = (*PHASES, "over")
    later = [
        gathering
        for _, gathering, _ in bench.told
        if order.index(gathering.phase) > order.index(before.phase)
    ]
    for gathering in (
        *later,
        bench.gathering,
        bench.collector.begin(2, STUDY.query(2), STUDY.size, bench.now)[0],
    ):
        assert give(gathering, 0, message) == (gathering, ())
    earlier = [
        gathering
        for _, gathering, _ in bench.told
        if order.index(gathering.phase) < order.index(before.phase)
    ]
    for gathering in (*earlier, before.replace(round=0)):
        with pytest.raises(RemoteProtocolError, match="SUM-101"):
            give(gathering, 0, message)


@pytest.mark.parametrize("kind", [SumShares, SumMasked, SumAgreed, SumUnmask])
def test_collector_rejects_member_that_dropped_out(kind: type[Message]) -> None:
    before, message = honest().heard(kind, 0)
    away = 0 if kind is SumShares else 4
    gathering = before.replace(expected=tuple(i for i in before.expected if i != away))
    with pytest.raises(RemoteProtocolError, match="SUM-101"):
        give(gathering, away, message)


def test_collector_rejects_strangers_and_collector_messages() -> None:
    bench = honest()
    before, message = bench.heard(SumKeys, 0)
    with pytest.raises(RemoteProtocolError, match=r"PROTO-003.*not on the roster"):
        bench.collector.handle_message(before, "peer-5", message, bench.now)
    with pytest.raises(RemoteProtocolError, match=r"PROTO-003.*does not send a sum.survivors"):
        give(before, 0, SumSurvivors(study=STUDY.digest, round=1, survivors=()))


# False messages of a member: each is rejected and blamed on its sender, and the round continues
# without it.


def flipped(data: bytes, at: int = 5) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def signed(i: int, message: Message, statement: bytes) -> Message:
    return message.replace(signature=STUDY.identity(i).sign(statement))


def context() -> RoundContext:
    return STUDY.terms.make_context(1, STUDY.query(1))


def digest() -> bytes:
    return digest_key_list(context(), honest().heard(SumShares, 0)[0].public_keys)


def bad_key(message: Any) -> Message:
    return signed(
        0,
        message.replace(mask=bytes(32)),
        keys_statement(context(), 0, MemberPublicKeys(bytes(32), message.box, message.commitment)),
    )


def bad_rows(message: Any, **rows: bytes) -> Message:
    message = message.replace(**rows)
    return signed(
        0,
        message,
        shares_statement(
            context(), 0, digest(), message.boxes, message.commitments, message.signatures
        ),
    )


def bad_vector(message: Any, vector: Array) -> Message:
    dealers = honest().heard(SumMasked, 0)[0].dealers
    return signed(
        0,
        message.replace(vector=vector),
        masked_statement(context(), 0, digest(), dealers, vector.data),
    )


def bad_shares(message: Any, shares: bytes) -> Message:
    return signed(0, message.replace(shares=shares), unmask_statement(context(), 0, shares))


LIES: dict[str, tuple[type[Message], Callable[[Any], Message], str]] = {
    "signature of keys": (
        SumKeys,
        lambda m: m.replace(signature=flipped(m.signature)),
        "CRYPTO-001.*member 0",
    ),
    "another's keys": (SumKeys, lambda _: honest().heard(SumKeys, 1)[1], "CRYPTO-001.*member 0"),
    "another query": (SumKeys, lambda m: m.replace(query=bytes(32)), "SUM-101.*another query"),
    "key of small order": (SumKeys, bad_key, "CRYPTO-001.*Member 0 published an invalid key"),
    "signature of shares": (
        SumShares,
        lambda m: m.replace(boxes=flipped(m.boxes)),
        "CRYPTO-001.*member 0",
    ),
    "a box too few": (SumShares, lambda m: bad_rows(m, boxes=m.boxes[:-1]), "MSG-005.*boxes"),
    "a commitment too many": (
        SumShares,
        lambda m: bad_rows(m, commitments=m.commitments + bytes(32)),
        "MSG-005.*commitments",
    ),
    "a signature too few": (
        SumShares,
        lambda m: bad_rows(m, signatures=b""),
        "MSG-005.*signatures",
    ),
    "signature of vector": (
        SumMasked,
        lambda m: m.replace(vector=Array.from_values(np.zeros(7, np.uint64))),
        "CRYPTO-001.*member 0",
    ),
    "vector too long": (
        SumMasked,
        lambda m: bad_vector(m, Array.from_values(np.zeros(8, np.uint64))),
        "MSG-005",
    ),
    "vector of another type": (
        SumMasked,
        lambda m: bad_vector(m, Array.from_values(np.zeros(7, np.int64))),
        "MSG-005",
    ),
    "signature of survivors": (
        SumAgreed,
        lambda m: m.replace(signature=flipped(m.signature)),
        "CRYPTO-001.*member 0",
    ),
    "another's agreement": (
        SumAgreed,
        lambda _: honest().heard(SumAgreed, 1)[1],
        "CRYPTO-001.*member 0",
    ),
    "signature of shares that open": (
        SumUnmask,
        lambda m: m.replace(shares=flipped(m.shares)),
        "CRYPTO-001.*member 0",
    ),
    "a share that was not dealt": (
        SumUnmask,
        lambda m: bad_shares(m, flipped(m.shares)),
        "CRYPTO-001.*Member 0 revealed",
    ),
    "shares of too few": (SumUnmask, lambda m: bad_shares(m, m.shares[:-68]), "MSG-005.*shares"),
}


@pytest.mark.parametrize("name", list(LIES))
def test_collector_rejects_false_message_and_completes_round(name: str) -> None:
    kind, lie, what = LIES[name]
    before, message = honest().heard(kind, 0)
    with pytest.raises(RemoteProtocolError, match=f"(?s){what}"):
        give(before, 0, lie(message))

    bench = Bench(STUDY)
    bench.play(until=SENDS_IN[kind])
    bench.pending = [(i, message) for i, message in bench.pending if i != 0]
    bench.gone = {0: SENDS_IN[kind]}
    gathering = bench.run()
    assert gathering.failure is None and gathering.total.tolist() == STUDY.expected(
        gathering.survivors, 1
    )


def test_collector_names_dealer_with_wrong_seed_at_end() -> None:
    """The fault is visible only when the seed is recovered; the failed round names the dealer."""
    bench = Bench(STUDY)
    bench.play(until="shares")
    sitting, listed = bench.before(SumKeyList, 2)
    keys, sign = read_keys(listed), STUDY.identity(2).sign
    seen = digest_key_list(context(), keys)
    dealing = share_keys(
        sitting.secrets._replace(own=bytes(32)), context(), 2, keys, 3, SeededEntropy(5)
    )
    signatures = [
        sign(encode_box_statement(context(), 2, to, seen, box, dealing.commitments[to]))
        for to, box in dealing.boxes.items()
    ]
    rows = (
        b"".join(dealing.boxes.values()),
        b"".join(dealing.commitments.values()),
        b"".join(signatures),
    )
    signature = sign(shares_statement(context(), 2, seen, *rows))
    lie = SumShares(
        study=STUDY.digest,
        round=1,
        boxes=rows[0],
        commitments=rows[1],
        signatures=rows[2],
        signature=signature,
    )
    bench.pending = [(i, lie if i == 2 else message) for i, message in bench.pending]
    told = bench.sittings[2]
    assert told is not None
    bench.sittings[2] = told.replace(kept=dealing.own_shares)
    failure = bench.run().failure
    assert failure is not None and failure.code == "CRYPTO-001"
    assert "shares from member 2" in failure.what


def test_collector_fails_when_sum_exceeds_limit() -> None:
    bench = Bench(STUDY)
    bench.play(until="masked")
    gathering = bench.gathering
    seen = digest_key_list(context(), gathering.public_keys)
    for at, (i, message) in enumerate(bench.pending):
        if i == 3:
            assert isinstance(message, SumMasked)
            vector = Array.from_values(
                message.vector.expect("uint64", 7) + np.uint64(MAX_SUM + 10**6)
            )
            bench.pending[at] = (
                i,
                signed(
                    3,
                    message.replace(vector=vector),
                    masked_statement(context(), 3, seen, gathering.dealers, vector.data),
                ),
            )
    failure = bench.run().failure
    assert failure is not None and failure.code == "SUM-004"
