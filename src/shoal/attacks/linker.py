"""Link anonymous packets to participants.

Tests of anonymous delivery give `link` the traffic that an observer has seen at one place: at the
coordinator, at a relay, or on the network. The observer has two lists, each in the order in which
it was seen: traces of participants under their names (enrolments, connections, ...) and traces of
packets without a name. For each clue alone it assigns a sender to every packet, no sender twice:

address
    A participant that was seen at the packet's address.
connection
    A participant that was seen on the packet's connection.
headers
    A participant with the same headers. Rare headers count most.
size
    A participant with a trace of the same size, or of a size with the usual difference.
order
    A participant with the same position among participants as the packet has among packets.
reversed order
    The same with one order reversed.
time
    A participant that was seen shortly before the packet arrived.
moment
    A participant with a request that began or ended when the packet arrived.

Size, order, time and moment are tried with each kind of trace. `assign_reads` gives names to reads
without a name first. Ties are broken at random. The true senders are used to count correct guesses
and for no other purpose.

The number of correct guesses and the ranks of the true senders are compared with those of random
senders; `score_clue` and `bound_chance` have the bounds and their proofs. A change must keep the
bounds conservative: a test that reports no link must not do so because the attack is weak.
`tests/unit/attacks` shows that each clue finds careless senders.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy

Floats = npt.NDArray[np.float64]

_TIE_BREAK_RANGE = 1 << 32


@dataclass(frozen=True)
class Trace:
    """One observed request or packet; None for what the observer cannot see.

    Parameters
    ----------
    kind
        For example enrolment, poll or packet.
    time
        Seconds since an arbitrary moment.
    connection
        Identifies the connection.
    size
        Bytes.
    headers
        Names and values, in order.
    ended
        When it ended: with the response, or when the client disconnected.
    """

    kind: str
    time: float | None = None
    address: str | None = None
    connection: str | None = None
    size: int | None = None
    headers: tuple[tuple[str, str], ...] | None = None
    ended: float | None = None


@dataclass(frozen=True)
class ObservedTraffic:
    """Everything that an observer has seen.

    Parameters
    ----------
    named
        Names and traces, in the order in which they were seen or stored. Each of the N participants
        occurs.
    packets
        The packets of one round, in the same order. A participant sends at most one in a round.
    """

    named: Sequence[tuple[str, Trace]]
    packets: Sequence[Trace]

    @property
    def participants(self) -> list[str]:
        """All participants, in the order in which they were seen first."""
        return list(dict.fromkeys(who for who, _ in self.named))

    @property
    def kinds(self) -> list[str]:
        """The kinds of traces of participants."""
        return list(dict.fromkeys(trace.kind for _, trace in self.named))


@dataclass(frozen=True)
class LinkageResult:
    """The result of one clue.

    Parameters
    ----------
    clue
        Its name, with the kind of trace that it was tried with.
    n_correct
        Packets with a correctly guessed sender.
    n_linked
        Lower bound on the number of linked packets; 0 if the correct guesses may be chance.
    z_score
        Standard deviations by which the senders are ranked higher than random senders would be.
    chance
        Upper bound on the chance of this result if nothing links packets to participants.
    is_found
        Whether the result is too unlikely to be chance.
    """

    clue: str
    n_packets: int
    n_participants: int
    n_correct: int
    n_linked: int
    z_score: float
    chance: float
    is_found: bool

    @property
    def share(self) -> float:
        """Lower bound on the share of linked packets."""
        return self.n_linked / self.n_packets if self.n_packets else 0.0

    def __str__(self) -> str:
        summary = (
            f"{self.n_correct} of {self.n_packets} guessed among {self.n_participants}, at "
            f"least {self.n_linked} linked"
        )
        return f"{self.clue}: {summary}, z {self.z_score:.1f} (chance {self.chance:.2g})"


def link(
    traffic: ObservedTraffic, senders: Sequence[str], entropy: Entropy, alpha: float
) -> tuple[LinkageResult, ...]:
    """Try all clues and compare the guesses with the true senders.

    Parameters
    ----------
    senders
        The true sender of each packet, in the order of the packets.
    entropy
        Breaks ties.
    alpha
        Probability of reporting any link if there is none.

    Examples
    --------
    >>> from shoal.entropy import SeededEntropy
    >>> people = [f"person {i}" for i in range(20)]
    >>> named = [(who, Trace("enrolment", address=f"127.0.0.{i}")) for i, who in enumerate(people)]
    >>> careless = [Trace("packet", address=f"127.0.0.{i}") for i in reversed(range(20))]
    >>> found = link(ObservedTraffic(named, careless), people[::-1], SeededEntropy(1), 1e-6)
    >>> print(found[0])
    address: 20 of 20 guessed among 20, at least 10 linked, z 7.4 (chance 8.2e-19)
    """
    people = traffic.participants
    guesses = {
        clue: (guess_senders(scores, entropy), rank_suspects(scores, entropy))
        for clue, scores in compute_clues(traffic)
    }
    truth = [people.index(sender) for sender in senders]
    return tuple(
        score_clue(clue, *guessed, truth, alpha / len(guesses)) for clue, guessed in guesses.items()
    )


def compute_clues(traffic: ObservedTraffic) -> Iterable[tuple[str, Floats]]:
    """Yield the name of each clue, and its score for each packet (row) and participant (column)."""
    yield "address", _compare_values(traffic, lambda trace: trace.address)
    yield "connection", _compare_values(traffic, lambda trace: trace.connection)
    yield "headers", _compare_headers(traffic)
    for kind in traffic.kinds:
        of_kind = ObservedTraffic(
            [(who, trace) for who, trace in traffic.named if trace.kind == kind], traffic.packets
        )
        columns = [traffic.participants.index(who) for who in of_kind.participants]
        for clue, scores in (
            ("size", _compare_sizes(of_kind)),
            ("order", _compare_order(of_kind)),
            ("reversed order", _compare_order(of_kind, is_reversed=True)),
            ("time", _compare_times(of_kind)),
            ("moment", _compare_moments(of_kind)),
        ):
            everyone = np.full((len(traffic.packets), len(traffic.participants)), -np.inf)
            everyone[:, columns] = scores
            yield f"{clue} of {kind}", everyone


def guess_senders(scores: Floats, entropy: Entropy) -> list[int | None]:
    """Assign different participants to packets, pairs with the highest scores first.

    Packets that are left over get None.
    """
    n, n_all = scores.shape
    guesses: list[int | None] = [None] * n
    free = set(range(n_all))
    for at in np.lexsort((entropy.below_many(_TIE_BREAK_RANGE, scores.size), -scores.ravel())):
        packet, person = divmod(int(at), n_all)
        if guesses[packet] is None and person in free:
            guesses[packet] = person
            free.remove(person)
    return guesses


def rank_suspects(scores: Floats, entropy: Entropy) -> npt.NDArray[np.intp]:
    """Return the participants for each packet (row), the most suspected first."""
    return np.lexsort(
        (entropy.below_many(_TIE_BREAK_RANGE, scores.size).reshape(scores.shape), -scores), axis=1
    )


def score_clue(
    clue: str,
    guesses: Sequence[int | None],
    suspected: npt.NDArray[np.intp],
    senders: Sequence[int],
    alpha: float,
) -> LinkageResult:
    """Compare guesses with the true senders; claim too much with probability alpha at most.

    Notes
    -----
    If nothing links packets and participants, the senders are a uniformly random assignment, and
    `bound_chance` limits the chance of k correct guesses. If L packets are linked and the others
    are random, the same bound holds for the remaining ones. The smallest L that makes the number of
    correct guesses plausible is a lower bound on the number of linked packets.

    A clue may also favour the senders without identifying them. For each packet, all participants
    are ranked by the clue, ties at random. The rank of a random sender is uniform. The sum of n
    independent ranks, each uniform over an interval of length 1, is z standard deviations from its
    mean with a chance of at most exp(-z^2 / 2).
    """
    n, n_all = suspected.shape
    n_correct = sum(guess == sender for guess, sender in zip(guesses, senders, strict=True))
    n_linked = next(
        k for k in range(n_correct + 1) if bound_chance(n - k, n_all - k, n_correct - k) > alpha / 2
    )
    places = np.argmax(suspected == np.array(senders, np.intp).reshape(n, 1), axis=1)
    z_score = float(np.sum(0.5 - (places + 0.5) / n_all) / math.sqrt(n / 12)) if n else 0.0
    chance = min(
        1.0, 2 * min(bound_chance(n, n_all, n_correct), math.exp(-(max(0.0, z_score) ** 2) / 2))
    )
    return LinkageResult(clue, n, n_all, n_correct, n_linked, z_score, chance, chance <= alpha)


def bound_chance(n_packets: int, n_participants: int, n_correct: int) -> float:
    """Return an upper bound on the chance of this many correct guesses for random senders.

    Notes
    -----
    Any k guesses of different participants are all correct with a chance of (N - k)! / N!. There
    are C(n, k) ways to choose k guesses. So at least k of n guesses are correct with a chance of at
    most C(n, k) (N - k)! / N!; for n = N this is 1 / k!. One correct guess is therefore expected,
    and ten are evidence.
    """
    ways = (
        math.lgamma(n_packets + 1)
        - math.lgamma(n_correct + 1)
        - math.lgamma(n_packets - n_correct + 1)
    )
    return min(
        1.0,
        math.exp(
            ways + math.lgamma(n_participants - n_correct + 1) - math.lgamma(n_participants + 1)
        ),
    )


def _compare_values(traffic: ObservedTraffic, what: Callable[[Trace], str | None]) -> Floats:
    """Return 1 for each packet and participant with the same value."""
    values_by_participant: Mapping[str, set[str | None]] = {
        who: set() for who in traffic.participants
    }
    for who, trace in traffic.named:
        values_by_participant[who].add(what(trace))
    rows = [
        [
            float(what(packet) is not None and what(packet) in values)
            for values in values_by_participant.values()
        ]
        for packet in traffic.packets
    ]
    return _make_matrix(traffic, rows)


def _compare_headers(traffic: ObservedTraffic) -> Floats:
    """Score common headers, rare ones higher; the order of the headers counts as one more."""
    values_by_participant: Mapping[str, set[object]] = {who: set() for who in traffic.participants}
    for who, trace in traffic.named:
        values_by_participant[who] |= _list_header_marks(trace)
    n_having = Counter(mark for marks in values_by_participant.values() for mark in marks)
    weights = {mark: math.log(len(values_by_participant) / n) for mark, n in n_having.items()}
    rows = [
        [
            math.fsum(weights[mark] for mark in _list_header_marks(packet) & marks)
            for marks in values_by_participant.values()
        ]
        for packet in traffic.packets
    ]
    return _make_matrix(traffic, rows)


def _list_header_marks(trace: Trace) -> set[object]:
    return (
        set()
        if trace.headers is None
        else {*trace.headers, tuple(name for name, _ in trace.headers)}
    )


def _compare_sizes(traffic: ObservedTraffic) -> Floats:
    """Score sizes by their difference.

    The difference is taken with and without the difference of the medians, and the smaller counts.
    """
    sizes = [trace.size for _, trace in traffic.named if trace.size is not None]
    of_packets = [packet.size for packet in traffic.packets if packet.size is not None]
    if not sizes or not of_packets:
        return _make_matrix(traffic, [])
    shift = float(np.median(of_packets) - np.median(sizes))
    values_by_participant = {
        who: [trace.size for name, trace in traffic.named if name == who and trace.size is not None]
        for who in traffic.participants
    }

    def score_size(packet: Trace, own: Sequence[int]) -> float:
        if packet.size is None or not own:
            return -np.inf
        return -min(abs(packet.size - size - by) for size in own for by in (0.0, shift))

    return _make_matrix(
        traffic,
        [
            [score_size(packet, own) for own in values_by_participant.values()]
            for packet in traffic.packets
        ],
    )


def _compare_order(traffic: ObservedTraffic, *, is_reversed: bool = False) -> Floats:
    """Score positions in the two orders by their difference."""
    n, n_all = len(traffic.packets), len(traffic.participants)
    places = (np.arange(n) + 0.5) / max(n, 1)
    others = (np.arange(n_all) + 0.5) / n_all
    return np.asarray(-np.abs(places[:, None] - (others[::-1] if is_reversed else others)))


def _compare_times(traffic: ObservedTraffic) -> Floats:
    """Score participants by how recently they were seen before the packet."""
    values_by_participant = {
        who: [trace.time for name, trace in traffic.named if name == who and trace.time is not None]
        for who in traffic.participants
    }

    def score_time(packet: Trace, own: Sequence[float]) -> float:
        before = [time for time in own if packet.time is not None and time <= packet.time]
        return -np.inf if packet.time is None or not before else max(before) - packet.time

    return _make_matrix(
        traffic,
        [
            [score_time(packet, own) for own in values_by_participant.values()]
            for packet in traffic.packets
        ],
    )


def _compare_moments(traffic: ObservedTraffic) -> Floats:
    """Score participants by the time between the packet and the nearest begin or end of a trace."""
    values_by_participant = {
        who: [
            moment
            for name, trace in traffic.named
            if name == who
            for moment in (trace.time, trace.ended)
            if moment is not None
        ]
        for who in traffic.participants
    }

    def score_moment(packet: Trace, own: Sequence[float]) -> float:
        return (
            -np.inf
            if packet.time is None or not own
            else -min(abs(moment - packet.time) for moment in own)
        )

    return _make_matrix(
        traffic,
        [
            [score_moment(packet, own) for own in values_by_participant.values()]
            for packet in traffic.packets
        ],
    )


def _make_matrix(traffic: ObservedTraffic, rows: Sequence[Sequence[float]]) -> Floats:
    """Return scores as a matrix; zeros if there are no rows."""
    return (
        np.array(rows, np.float64)
        if rows
        else np.zeros((len(traffic.packets), len(traffic.participants)))
    )


def assign_reads(
    named: Sequence[tuple[str, Trace]], reads: Sequence[Trace]
) -> list[tuple[str, Trace]]:
    """Assign reads without a name to participants, and return all named traces by time.

    A participant is seen under its name when it enrols. After that it reads without a name: it
    polls, waits for the response, and polls again. A read that begins just after another one ended
    is therefore likely to be from the same participant, and the first read from a participant that
    has just enrolled. Each read, by time of begin, is assigned to the idle participant with the
    latest finished request. A participant waits for one response at a time, so a read that begins
    while all wait is assigned to none.

    Parameters
    ----------
    named
        Names and traces; each trace has a time.
    reads
        Traces without a name; each has a time. A read without an end has not ended.

    Examples
    --------
    >>> enrolled = [
    ...     ("ann", Trace("enrolment", 1.0, ended=1.1)),
    ...     ("bob", Trace("enrolment", 2.0, ended=2.1)),
    ... ]
    >>> reads = [
    ...     Trace("read", 1.2, ended=30.0),
    ...     Trace("read", 2.2, ended=9.0),
    ...     Trace("read", 30.1),
    ...     Trace("read", 9.1),
    ... ]
    >>> [who for who, trace in assign_reads(enrolled, reads) if trace.kind == "read"]
    ['ann', 'bob', 'bob', 'ann']
    """
    assigned: list[tuple[str, Trace]] = []
    free_since: dict[str, float] = {}
    for who, trace in sorted(
        [*named, *((None, trace) for trace in reads)], key=lambda pair: _get_begin(pair[1])
    ):
        name = who if who is not None else _find_likely_reader(free_since, _get_begin(trace))
        if name is not None:
            assigned.append((name, trace))
            free_since[name] = _get_end(trace, is_named=who is not None)
    return assigned


def _find_likely_reader(free_since: dict[str, float], begin: float) -> str | None:
    """Return the participant that has been idle for the shortest time."""
    free = {who: since for who, since in free_since.items() if since <= begin}
    return max(free, key=lambda who: free[who]) if free else None


def _get_begin(trace: Trace) -> float:
    assert trace.time is not None
    return trace.time


def _get_end(trace: Trace, *, is_named: bool) -> float:
    if trace.ended is not None:
        return trace.ended
    return _get_begin(trace) if is_named else math.inf
