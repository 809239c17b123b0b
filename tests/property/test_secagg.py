"""Secure sums with any dropouts and changed messages.

The sum is that of the survivors, or there is none. No changed message is accepted.
"""

from __future__ import annotations

from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.messages.codec import decode, encode
from shoal.protocols.secagg.messages import SumAgreement, SumBoxes
from tests.support.hostile import hostile
from tests.support.toy.sums import PHASES, REGISTRY, Bench, SumStudy

STUDY = SumStudy(n_members=4, threshold=3)


@st.composite
def studies(draw: st.DrawFn) -> tuple[SumStudy, list[dict[int, str]]]:
    """Generate members, and the dropouts of each of up to three rounds."""
    n = draw(st.integers(2, 6))
    study = SumStudy(
        n_members=n, threshold=draw(st.integers(n // 2 + 1, n)), size=draw(st.integers(0, 3))
    )
    absent = st.dictionaries(st.integers(0, n - 1), st.sampled_from(PHASES), max_size=n)
    return study, draw(st.lists(absent, min_size=1, max_size=3))


@hostile(40)
@given(studies(), st.integers(0, 2**32))
def test_secagg_round_tolerates_allowed_dropouts_and_ends_with_more(
    case: tuple[SumStudy, list[dict[int, str]]], seed: int
) -> None:
    study, rounds = case
    bench = Bench(study, seed)
    for number, gone in enumerate(rounds, 1):
        gathering = bench.play(number, gone)
        assert (gathering.failure is None) == (len(gone) <= study.n_members - study.threshold)
        if gathering.failure is None:
            assert gathering.survivors == tuple(
                i for i in range(study.n_members) if gone.get(i) not in PHASES[:3]
            )
            assert gathering.total.tolist() == study.expected(gathering.survivors, number)
        else:
            assert gathering.failure.code == "SUM-103"


@cache
def run_honest_round() -> Bench:
    """Return a round in which member 3 drops out after it has shared its keys."""
    bench = Bench(STUDY)
    bench.play(gone={3: "masked"})
    return bench


def change_bit(data: bytes, at: int, bit: int) -> bytes:
    at %= len(data)
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


places = st.integers(0, 2**20)


@hostile()
@given(places, places, st.integers(0, 7))
def test_secagg_collector_rejects_any_changed_bit(which: int, at: int, bit: int) -> None:
    bench = run_honest_round()
    i, gathering, message = bench.told[which % len(bench.told)]
    try:
        other = decode(change_bit(encode(message), at, bit), REGISTRY, STUDY.digest)
        assert bench.collector.handle_message(gathering, STUDY.names[i], other, bench.now) == (
            gathering,
            (),
        )
    except RemoteProtocolError:
        pass


@hostile()
@given(places, places, st.integers(0, 7))
def test_secagg_member_rejects_any_changed_bit(which: int, at: int, bit: int) -> None:
    bench = run_honest_round()
    shown = [one for one in bench.shown if isinstance(one[2], SumBoxes | SumAgreement)]
    i, sitting, message = shown[which % len(shown)]
    try:
        other = decode(change_bit(encode(message), at, bit), REGISTRY, STUDY.digest)
        after, sends = bench.members[i].handle_message(sitting, other, SeededEntropy(1))
        assert sends == () and (after == sitting or after.is_over)
    except RemoteProtocolError:
        pass
