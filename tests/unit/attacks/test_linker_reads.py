"""The linker assigns anonymous reads to participants, and links those that stop to read."""

from __future__ import annotations

import numpy as np

from shoal.attacks.linker import LinkageResult, ObservedTraffic, Trace, assign_reads, link
from shoal.entropy import SeededEntropy
from tests.statistical.harness import statistical

N = 24
ALPHA = 1e-9
SPAN, WAIT, STEP = 3600.0, 30.0, 0.05
"""Seconds in which people enrol, and then send; that a read waits for news; and between an answer
and the next read.
"""


def drawn(n: int, span: float, entropy: SeededEntropy) -> list[float]:
    """Return sorted random times in a span."""
    return (np.sort(entropy.below_many(1 << 30, n)) * span / (1 << 30)).tolist()  # type: ignore[no-any-return]


def reads_until(begin: float, end: float) -> list[Trace]:
    """Return consecutive reads from one time to another; the last is aborted."""
    found = []
    while begin < end:
        found.append(Trace("read", begin, ended=min(begin + WAIT, end)))
        begin += WAIT + STEP
    return found


def found(*, is_careful: bool, entropy: SeededEntropy) -> tuple[dict[str, LinkageResult], float]:
    """What the linker finds, and the share of reads that were given to whose they are.

    People read from when they have enrolled: the careless until they have sent, the careful until
    some time after all have.
    """
    enrolled = [
        (f"person {i}", Trace("enrolment", time, ended=time + STEP))
        for i, time in enumerate(drawn(N, SPAN, entropy))
    ]
    senders = np.argsort(entropy.below_many(1 << 32, N)).tolist()
    packets = [Trace("packet", SPAN + time) for time in drawn(N, SPAN, entropy)]
    sent = {i: packet.time or 0.0 for packet, i in zip(packets, senders, strict=True)}
    quiet = [2 * SPAN + int(entropy.below(1000)) * SPAN / 5000 for _ in range(N)]
    own = {
        who: reads_until((trace.time or 0.0) + 2 * STEP, quiet[i] if is_careful else sent[i] + STEP)
        for i, (who, trace) in enumerate(enrolled)
    }
    reads = sorted(
        (trace for traces in own.values() for trace in traces), key=lambda trace: trace.time or 0.0
    )
    named = assign_reads(enrolled, reads)
    right = sum(trace in own[who] for who, trace in named if trace.kind == "read") / len(reads)
    findings = link(
        ObservedTraffic(named, packets), [f"person {i}" for i in senders], entropy, ALPHA
    )
    return {one.clue: one for one in findings}, right


def test_reader_that_stops_when_its_packet_arrives_is_linked(entropy: SeededEntropy) -> None:
    findings, right = found(is_careful=False, entropy=entropy)
    assert right > 0.9
    assert findings["moment of read"].is_found and findings["moment of read"].n_correct > N / 2, (
        str(findings["moment of read"])
    )
    assert not findings["moment of enrolment"].is_found


@statistical(alpha=ALPHA)
def test_reader_that_continues_is_not_linked(entropy: SeededEntropy) -> None:
    findings, right = found(is_careful=True, entropy=entropy)
    assert right > 0.9, "though the observer knows whose reads are whose"
    assert not [str(one) for one in findings.values() if one.is_found or one.n_linked]


def test_read_while_all_wait_is_not_linked() -> None:
    enrolled = [("ann", Trace("enrolment", 1.0)), ("bob", Trace("enrolment", 2.0, ended=2.5))]
    reads = [
        Trace("read", 0.5),
        Trace("read", 1.5, ended=4.0),
        Trace("read", 2.2),
        Trace("read", 3.0),
        Trace("read", 3.5),
        Trace("read", 5.0),
    ]
    assert [(who, trace.time) for who, trace in assign_reads(enrolled, reads)] == [
        ("ann", 1.0),
        ("ann", 1.5),
        ("bob", 2.0),
        ("bob", 3.0),
        ("ann", 5.0),
    ]
