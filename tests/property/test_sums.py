"""Secure sums: whoever drops out whenever, the sum is that of the survivors or there is none; and no changed message is taken."""

from __future__ import annotations

from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from hostile import hostile
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.messages.codec import decode, encode
from shoal.protocols.sums.messages import SumAgreement, SumBoxes
from toy.sums import PHASES, REGISTRY, Bench, SumStudy

STUDY = SumStudy(n_members=4, threshold=3)


@st.composite
def studies(draw: st.DrawFn) -> tuple[SumStudy, list[dict[int, str]]]:
    """Some members, and who drops out in each of up to three rounds."""
    n = draw(st.integers(2, 6))
    study = SumStudy(n_members=n, threshold=draw(st.integers(n // 2 + 1, n)), size=draw(st.integers(0, 3)))
    absent = st.dictionaries(st.integers(0, n - 1), st.sampled_from(PHASES), max_size=n)
    return study, draw(st.lists(absent, min_size=1, max_size=3))


@hostile(40)
@given(studies(), st.integers(0, 2**32))
def test_up_to_as_many_as_may_drop_out_at_any_time_and_one_more_ends_the_round(
    case: tuple[SumStudy, list[dict[int, str]]], seed: int
) -> None:
    study, rounds = case
    bench = Bench(study, seed)
    for number, gone in enumerate(rounds, 1):
        gathering = bench.play(number, gone)
        assert (gathering.failure is None) == (len(gone) <= study.n_members - study.threshold)
        if gathering.failure is None:
            assert gathering.survivors == tuple(i for i in range(study.n_members) if gone.get(i) not in PHASES[:3])
            assert gathering.total.tolist() == study.expected(gathering.survivors, number)
        else:
            assert gathering.failure.code == "SUM-103"


@cache
def honest() -> Bench:
    """A round of which member 3 drops out after it has dealt."""
    bench = Bench(STUDY)
    bench.play(gone={3: "masked"})
    return bench


def changed(data: bytes, at: int, bit: int) -> bytes:
    at %= len(data)
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


places = st.integers(0, 2**20)


@hostile()
@given(places, places, st.integers(0, 7))
def test_no_bit_of_what_a_member_sends_can_be_changed(which: int, at: int, bit: int) -> None:
    bench = honest()
    i, gathering, message = bench.told[which % len(bench.told)]
    try:
        other = decode(changed(encode(message), at, bit), REGISTRY, STUDY.digest)
        assert bench.collector.received(gathering, STUDY.names[i], other, bench.now) == (gathering, ())
    except RemoteProtocolError:
        pass


@hostile()
@given(places, places, st.integers(0, 7))
def test_no_bit_of_what_makes_a_member_mask_or_reveal_can_be_changed(which: int, at: int, bit: int) -> None:
    bench = honest()
    shown = [one for one in bench.shown if isinstance(one[2], SumBoxes | SumAgreement)]
    i, sitting, message = shown[which % len(shown)]
    try:
        other = decode(changed(encode(message), at, bit), REGISTRY, STUDY.digest)
        after, sends = bench.members[i].received(sitting, other, SeededEntropy(1))
        assert sends == () and (after == sitting or after.is_over)
    except RemoteProtocolError:
        pass
