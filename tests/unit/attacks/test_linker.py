"""The linker finds each leak, and claims nothing about clean traces."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from scipy import stats

from shoal.attacks.linker import LinkageResult, ObservedTraffic, Trace, bound_chance, link
from shoal.entropy import SeededEntropy
from tests.statistical.harness import statistical

N = 50
ALPHA = 1e-9
SPAN = 3600.0
"""Seconds in which packets are sent, after everyone has enrolled within as many."""
HEADERS = (("user-agent", "shoal"), ("accept", "*/*"))

Careless = Callable[
    [list[Trace], list[Trace], list[int]], tuple[list[Trace], list[Trace], list[int]]
]


def clean(n: int, entropy: SeededEntropy) -> tuple[list[Trace], list[Trace], list[int]]:
    """Return enrolments of n people, a packet of each at a random time, and the true senders."""
    enrolled = np.sort(entropy.below_many(1 << 30, n)) * SPAN / (1 << 30)
    sent = SPAN + np.sort(entropy.below_many(1 << 30, n)) * SPAN / (1 << 30)
    named = [
        Trace("enrolment", time, f"127.0.1.{i}", f"named {i}", 300 + i % 2, HEADERS)
        for i, time in enumerate(enrolled)
    ]
    packets = [
        Trace("packet", time, "127.0.0.9", f"relay {i % 3}", 1024, HEADERS)
        for i, time in enumerate(sent)
    ]
    return named, packets, np.argsort(entropy.below_many(1 << 32, n)).tolist()


def address_reused(named, packets, senders):
    return (
        named,
        [
            replace(packet, address=named[i].address)
            for packet, i in zip(packets, senders, strict=True)
        ],
        senders,
    )


def connection_shared(named, packets, senders):
    return (
        named,
        [
            replace(packet, connection=named[i].connection)
            for packet, i in zip(packets, senders, strict=True)
        ],
        senders,
    )


def unpadded(named, packets, senders):
    grown = [replace(trace, size=300 + 3 * i) for i, trace in enumerate(named)]
    return (
        grown,
        [replace(packet, size=900 + 3 * i) for packet, i in zip(packets, senders, strict=True)],
        senders,
    )


def same_size(named, packets, senders):
    grown = [replace(trace, size=300 + 3 * i) for i, trace in enumerate(named)]
    return (
        grown,
        [replace(packet, size=300 + 3 * i) for packet, i in zip(packets, senders, strict=True)],
        senders,
    )


def order_kept(named, packets, senders):
    return named, packets, sorted(senders)


def order_reversed(named, packets, senders):
    return named, packets, sorted(senders, reverse=True)


def header_of_its_own(named, packets, senders):
    def own(trace: Trace, i: int) -> Trace:
        return replace(trace, headers=(*HEADERS, ("accept-language", f"language {i}")))

    return (
        [own(trace, i) for i, trace in enumerate(named)],
        [own(packets[j], i) for j, i in enumerate(senders)],
        senders,
    )


def order_of_headers(named, packets, senders):
    """Each has one of 24 orders of the same headers; some share one, and are found in part."""
    orders = list(permutations([("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")]))

    def own(trace: Trace, i: int) -> Trace:
        return replace(trace, headers=orders[i % len(orders)])

    return (
        [own(trace, i) for i, trace in enumerate(named)],
        [own(packets[j], i) for j, i in enumerate(senders)],
        senders,
    )


def right_after(named, packets, senders):
    """All send within seconds of their enrolment; others enrol at the same time."""
    late = [
        replace(packet, time=named[i].time + 1.0)
        for packet, i in zip(packets, senders, strict=True)
    ]
    return named, late, senders


def sooner(named, packets, senders):
    """All send within a fifth of the enrolment period: most guesses are wrong, but not all."""
    delays = (0.01 + 0.19 * ((7 * i) % N) / N for i in range(N))
    late = [
        replace(packet, time=named[i].time + SPAN * by)
        for packet, i, by in zip(packets, senders, delays, strict=True)
    ]
    return named, late, senders


def hung_up(named, packets, senders):
    """All wait for news, and disconnect when their packet is acknowledged."""
    came = {i: packet.time for packet, i in zip(packets, senders, strict=True)}
    return [replace(trace, ended=came[i] + 0.1) for i, trace in enumerate(named)], packets, senders


CARELESS = {
    "address": (address_reused, N),
    "connection": (connection_shared, N),
    "size of enrolment": (unpadded, N),
    "size of enrolment ": (same_size, N),
    "order of enrolment": (order_kept, N),
    "reversed order of enrolment": (order_reversed, N),
    "headers": (header_of_its_own, N),
    "headers ": (order_of_headers, 13),
    "time of enrolment": (right_after, 25),
    "time of enrolment ": (sooner, 0),
    "moment of enrolment": (hung_up, 25),
}
"""Clues, the carelessness that each must find, and how many guesses are right at least."""


def found(
    named: Sequence[Trace],
    packets: Sequence[Trace],
    senders: Sequence[int],
    entropy: SeededEntropy,
    alpha: float,
) -> list[LinkageResult]:
    seen = ObservedTraffic([(f"person {i}", trace) for i, trace in enumerate(named)], packets)
    return list(link(seen, [f"person {i}" for i in senders], entropy, alpha))


@pytest.mark.parametrize("clue", CARELESS)
def test_each_leak_is_found_by_its_feature(clue: str, entropy: SeededEntropy) -> None:
    careless, least = CARELESS[clue]
    findings = {one.clue: one for one in found(*careless(*clean(N, entropy)), entropy, ALPHA)}
    one = findings.pop(clue.strip())
    assert one.is_found, str(one)
    assert one.n_correct >= least
    assert one.n_linked <= one.n_correct and (one.share > 0) == (least > 0)
    assert one.z_score > 6.5
    others = {clue for clue, other in findings.items() if other.is_found}
    # Order and times go together; who has an address, a size or a header of its own has nothing
    # else.
    times = {"order of enrolment", "time of enrolment", "moment of enrolment"}
    assert others <= (times if "order" in clue or "time" in clue else set()), others


@statistical(alpha=ALPHA)
def test_clean_traces_give_no_claim(entropy: SeededEntropy) -> None:
    findings = found(*clean(N, entropy), entropy, ALPHA)
    assert [one.clue for one in findings] == [
        "address",
        "connection",
        "headers",
        "size of enrolment",
        "order of enrolment",
        "reversed order of enrolment",
        "time of enrolment",
        "moment of enrolment",
    ]
    assert not any(one.is_found or one.n_linked for one in findings), "\n".join(map(str, findings))


@statistical(alpha=1e-9)
def test_false_claims_are_as_rare_as_declared(entropy: SeededEntropy) -> None:
    n_runs, alpha = 150, 0.05
    claims = sum(
        any(one.is_found for one in found(*clean(12, entropy), entropy, alpha))
        for _ in range(n_runs)
    )
    most = stats.binom.isf(1e-9, n_runs, alpha)
    assert claims <= most
    mutant = sum(
        any(one.is_found for one in found(*order_kept(*clean(12, entropy)), entropy, alpha))
        for _ in range(10)
    )
    assert mutant == 10


def test_observer_without_traces_claims_nothing(entropy: SeededEntropy) -> None:
    _, _, senders = clean(N, entropy)
    findings = found([Trace("enrolment")] * N, [Trace("packet")] * N, senders, entropy, ALPHA)
    assert not any(one.is_found for one in findings)


def test_fewer_packets_than_participants_are_matched(entropy: SeededEntropy) -> None:
    named, packets, senders = address_reused(*clean(N, entropy))
    (address, *_) = found(named, packets[:10], senders[:10], entropy, 1e-6)
    assert (address.n_packets, address.n_participants, address.n_correct) == (10, N, 10)
    assert address.is_found and address.n_linked >= 3
    assert [(one.chance, one.share) for one in found(named, [], [], entropy, ALPHA)] == [
        (1.0, 0.0)
    ] * 8


def test_more_packets_than_participants_leave_some_unmatched(entropy: SeededEntropy) -> None:
    named, packets, senders = address_reused(*clean(N, entropy))
    findings = found(named[:5], packets, [i % 5 for i in senders], entropy, ALPHA)
    assert {one.n_participants for one in findings} == {5}
    assert not any(one.is_found for one in findings)


def test_kinds_of_traces_are_tried_separately(entropy: SeededEntropy) -> None:
    """A participant that polls right before it sends is found by its polls alone.

    One that never polls is not.
    """
    named, packets, senders = clean(N, entropy)
    polls = [
        (f"person {i}", Trace("poll", packet.time - 0.5))
        for packet, i in zip(packets, senders, strict=True)
        if i
    ]
    seen = ObservedTraffic(
        [(f"person {i}", trace) for i, trace in enumerate(named)] + polls, packets
    )
    findings = {
        one.clue: one for one in link(seen, [f"person {i}" for i in senders], entropy, ALPHA)
    }
    assert findings["time of poll"].n_correct >= N // 2
    assert (
        findings["time of poll"].is_found
        and findings["order of poll"].is_found
        and not findings["time of enrolment"].is_found
    )


def test_probability_of_guesses_is_an_upper_bound() -> None:
    """Compared with all permutations of six: correct guesses are fixed points."""
    fixed = np.array([sum(i == j for i, j in enumerate(order)) for order in permutations(range(6))])
    for k in range(7):
        assert (fixed >= k).mean() <= bound_chance(6, 6, k) * (1 + 1e-9)
        assert math.isclose(bound_chance(6, 6, k), 1 / math.factorial(k))
    assert bound_chance(2, 10, 2) == pytest.approx(1 / 90)
