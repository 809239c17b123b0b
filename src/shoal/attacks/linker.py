"""An observer who tries to tell whose an anonymous packet is, from what can be seen at one place: the coordinator, a relay, the wire.

It has traces of participants under their names (when they enrolled, from where, over which connection, ...) and traces of packets under
no name, each list in the order in which it was seen. By each clue alone it gives every packet a sender, no two packets the same one:

==============  =====================================================================================================
clue            the sender is
==============  =====================================================================================================
address         somebody who was seen at the address that the packet came from
connection      somebody who was seen on the connection that the packet came over
headers         somebody with the same headers, of which those that few have count most
size            somebody with a trace of the same size, or of one that differs by as much as it does for everyone
order           somebody who was seen as early among participants as the packet was among packets
reversed order  the other way round
time            somebody who was seen shortly before the packet came
moment          somebody of whom something that was seen began or ended as the packet came
==============  =====================================================================================================

Size, order, time and moment are tried with each kind of trace. What was seen under no name can be given one before
(`shoal.attacks.linker_reads`). Where a clue says the same of several, one of them is drawn. Who the senders are is
used to count the right guesses, and for nothing else.

If nothing links them, the senders are as good as a shuffle. Then of N participants and n packets at least k guesses are right with a
chance of at most C(n, k) (N - k)! / N!, whatever the guesses are: for n = N, 1 / k!. So even who knows nothing is right about once; ten
right guesses are evidence. If L packets are linked and the others shuffled, the same holds for what is left; the least L for which
as many right guesses as there were are not too unlikely is a lower bound on what is linked.

A clue may also lean to the senders without naming them. For each packet all participants are put in the order in which the clue suspects
them, ties drawn; a sender who is a shuffle's is at any place with the same chance. The sum of n places that are uniform over an interval of
length 1 is z standard deviations from its mean with a chance of at most exp(-z^2 / 2).
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

_FINE = 1 << 32


@dataclass(frozen=True)
class Trace:
    """What is seen of one request or packet; None for what cannot be seen from there.

    Parameters
    ----------
    kind
        What it is: such as enrolment, poll, packet.
    time
        Seconds, since any moment.
    address, connection
        From where it came, and what tells its connection from others.
    size
        Bytes.
    headers
        Names and values, in order.
    until
        When it ended: it was answered, or whoever asked hung up.
    """

    kind: str
    time: float | None = None
    address: str | None = None
    connection: str | None = None
    size: int | None = None
    headers: tuple[tuple[str, str], ...] | None = None
    until: float | None = None


@dataclass(frozen=True)
class Seen:
    """All that an observer has.

    Parameters
    ----------
    named
        Who was seen, and what of them, in the order in which it was seen or in which a file has it. Each of N participants occurs.
    packets
        The packets of one round, in that order. Nobody sends more than one in a round.
    """

    named: Sequence[tuple[str, Trace]]
    packets: Sequence[Trace]

    @property
    def participants(self) -> list[str]:
        """All that were seen, in the order in which they were seen first."""
        return list(dict.fromkeys(who for who, _ in self.named))

    @property
    def kinds(self) -> list[str]:
        """The kinds of traces of participants."""
        return list(dict.fromkeys(trace.kind for _, trace in self.named))


@dataclass(frozen=True)
class Finding:
    """How far one clue leads.

    Parameters
    ----------
    clue
        Its name, with the kind of trace that it was tried with.
    n_packets, n_participants
        How many were to be linked, and to how many.
    n_right
        Packets whose sender was guessed.
    n_linked
        So many packets are linked at least; 0 where the right guesses may be chance.
    lean
        By how many standard deviations the senders are nearer to the front of those whom the clue suspects than a shuffle's would be.
    chance
        The most that the chance is of as many right guesses or of such a lean, where nothing links packets to participants.
    is_found
        Whether that is too little to be chance.
    """

    clue: str
    n_packets: int
    n_participants: int
    n_right: int
    n_linked: int
    lean: float
    chance: float
    is_found: bool

    @property
    def share(self) -> float:
        """The share of packets that are linked, at least."""
        return self.n_linked / self.n_packets if self.n_packets else 0.0

    def __str__(self) -> str:
        found = f"{self.n_right} of {self.n_packets} guessed among {self.n_participants}, at least {self.n_linked} linked"
        return f"{self.clue}: {found}, lean {self.lean:.1f} (chance {self.chance:.2g})"


def link(seen: Seen, senders: Sequence[str], entropy: Entropy, alpha: float) -> tuple[Finding, ...]:
    """Try all clues, and hold the guesses against the truth.

    Parameters
    ----------
    seen
        What the observer has.
    senders
        The truth: who has sent each packet, in the order of the packets.
    entropy
        What ties are broken with.
    alpha
        The chance with which anything at all may be claimed to be linked, where nothing is.

    Examples
    --------
    >>> from shoal.entropy import SeededEntropy
    >>> people = [f"person {i}" for i in range(20)]
    >>> named = [(who, Trace("enrolment", address=f"127.0.0.{i}")) for i, who in enumerate(people)]
    >>> careless = [Trace("packet", address=f"127.0.0.{i}") for i in reversed(range(20))]
    >>> found = link(Seen(named, careless), people[::-1], SeededEntropy(1), 1e-6)
    >>> print(found[0])
    address: 20 of 20 guessed among 20, at least 10 linked, lean 7.4 (chance 8.2e-19)
    """
    people = seen.participants
    guesses = {clue: (guess(scores, entropy), suspects(scores, entropy)) for clue, scores in clues(seen)}
    truth = [people.index(sender) for sender in senders]
    return tuple(score(clue, *guessed, truth, alpha / len(guesses)) for clue, guessed in guesses.items())


def clues(seen: Seen) -> Iterable[tuple[str, Floats]]:
    """Each clue's name, and how much it speaks for each packet (row) being of each participant (column)."""
    yield "address", _alike(seen, lambda trace: trace.address)
    yield "connection", _alike(seen, lambda trace: trace.connection)
    yield "headers", _headers(seen)
    for kind in seen.kinds:
        of_kind = Seen([(who, trace) for who, trace in seen.named if trace.kind == kind], seen.packets)
        columns = [seen.participants.index(who) for who in of_kind.participants]
        for clue, scores in (
            ("size", _sizes(of_kind)),
            ("order", _order(of_kind)),
            ("reversed order", _order(of_kind, is_reversed=True)),
            ("time", _times(of_kind)),
            ("moment", _moments(of_kind)),
        ):
            everyone = np.full((len(seen.packets), len(seen.participants)), -np.inf)
            everyone[:, columns] = scores
            yield f"{clue} of {kind}", everyone


def guess(scores: Floats, entropy: Entropy) -> list[int | None]:
    """A participant for each packet, no two the same: the pair with the highest score first; None for packets that are left over."""
    n, n_all = scores.shape
    found: list[int | None] = [None] * n
    free = set(range(n_all))
    for at in np.lexsort((entropy.below_many(_FINE, scores.size), -scores.ravel())):
        packet, person = divmod(int(at), n_all)
        if found[packet] is None and person in free:
            found[packet] = person
            free.remove(person)
    return found


def suspects(scores: Floats, entropy: Entropy) -> npt.NDArray[np.intp]:
    """For each packet (row) the participants, the most suspected first."""
    return np.lexsort((entropy.below_many(_FINE, scores.size).reshape(scores.shape), -scores), axis=1)


def score(clue: str, guesses: Sequence[int | None], suspected: npt.NDArray[np.intp], senders: Sequence[int], alpha: float) -> Finding:
    """Hold the guesses against the truth, and say what they are worth at a chance of alpha to claim too much."""
    n, n_all = suspected.shape
    right = sum(one == other for one, other in zip(guesses, senders, strict=True))
    linked = next(k for k in range(right + 1) if most_chance(n - k, n_all - k, right - k) > alpha / 2)
    places = np.argmax(suspected == np.array(senders, np.intp).reshape(n, 1), axis=1)
    lean = float(np.sum(0.5 - (places + 0.5) / n_all) / math.sqrt(n / 12)) if n else 0.0
    chance = min(1.0, 2 * min(most_chance(n, n_all, right), math.exp(-(max(0.0, lean) ** 2) / 2)))
    return Finding(clue, n, n_all, right, linked, lean, chance, chance <= alpha)


def most_chance(n_packets: int, n_participants: int, n_right: int) -> float:
    """The most that the chance can be of so many right guesses if the senders are a shuffle.

    Notes
    -----
    Any k guesses at different participants are all right with a chance of (N - k)! / N!; there are C(n, k) ways to choose k.
    """
    ways = math.lgamma(n_packets + 1) - math.lgamma(n_right + 1) - math.lgamma(n_packets - n_right + 1)
    return min(1.0, math.exp(ways + math.lgamma(n_participants - n_right + 1) - math.lgamma(n_participants + 1)))


def _alike(seen: Seen, what: Callable[[Trace], str | None]) -> Floats:
    """1 where a packet has in common with a participant what can be seen of both."""
    had: Mapping[str, set[str | None]] = {who: set() for who in seen.participants}
    for who, trace in seen.named:
        had[who].add(what(trace))
    rows = [[float(what(packet) is not None and what(packet) in values) for values in had.values()] for packet in seen.packets]
    return _matrix(seen, rows)


def _headers(seen: Seen) -> Floats:
    """Headers that packet and participant have in common, each by how few participants have it; their order is one more."""
    had: Mapping[str, set[object]] = {who: set() for who in seen.participants}
    for who, trace in seen.named:
        had[who] |= _marks(trace)
    n_having = Counter(mark for marks in had.values() for mark in marks)
    worth = {mark: math.log(len(had) / n) for mark, n in n_having.items()}
    rows = [[math.fsum(worth[mark] for mark in _marks(packet) & marks) for marks in had.values()] for packet in seen.packets]
    return _matrix(seen, rows)


def _marks(trace: Trace) -> set[object]:
    return set() if trace.headers is None else {*trace.headers, tuple(name for name, _ in trace.headers)}


def _sizes(seen: Seen) -> Floats:
    """How near the sizes are, as they are or less what the middle packet is larger than the middle trace; the nearer of the two."""
    sizes = [trace.size for _, trace in seen.named if trace.size is not None]
    of_packets = [packet.size for packet in seen.packets if packet.size is not None]
    if not sizes or not of_packets:
        return _matrix(seen, [])
    shift = float(np.median(of_packets) - np.median(sizes))
    had = {who: [trace.size for name, trace in seen.named if name == who and trace.size is not None] for who in seen.participants}

    def near(packet: Trace, own: Sequence[int]) -> float:
        if packet.size is None or not own:
            return -np.inf
        return -min(abs(packet.size - size - by) for size in own for by in (0.0, shift))

    return _matrix(seen, [[near(packet, own) for own in had.values()] for packet in seen.packets])


def _order(seen: Seen, *, is_reversed: bool = False) -> Floats:
    """How near the places are in the two orders."""
    n, n_all = len(seen.packets), len(seen.participants)
    places = (np.arange(n) + 0.5) / max(n, 1)
    others = (np.arange(n_all) + 0.5) / n_all
    return np.asarray(-np.abs(places[:, None] - (others[::-1] if is_reversed else others)))


def _times(seen: Seen) -> Floats:
    """The shorter the time since a participant was seen last, the more."""
    had = {who: [trace.time for name, trace in seen.named if name == who and trace.time is not None] for who in seen.participants}

    def soon(packet: Trace, own: Sequence[float]) -> float:
        before = [time for time in own if packet.time is not None and time <= packet.time]
        return -np.inf if packet.time is None or not before else max(before) - packet.time

    return _matrix(seen, [[soon(packet, own) for own in had.values()] for packet in seen.packets])


def _moments(seen: Seen) -> Floats:
    """The shorter the time between a packet and the begin or the end of anything of a participant, before or after it, the more."""
    had = {
        who: [moment for name, trace in seen.named if name == who for moment in (trace.time, trace.until) if moment is not None]
        for who in seen.participants
    }

    def near(packet: Trace, own: Sequence[float]) -> float:
        return -np.inf if packet.time is None or not own else -min(abs(moment - packet.time) for moment in own)

    return _matrix(seen, [[near(packet, own) for own in had.values()] for packet in seen.packets])


def _matrix(seen: Seen, rows: Sequence[Sequence[float]]) -> Floats:
    """Scores; zeros where there are none."""
    return np.array(rows, np.float64) if rows else np.zeros((len(seen.packets), len(seen.participants)))
