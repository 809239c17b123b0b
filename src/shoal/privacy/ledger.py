"""The ledger's core: a hash-chained list of records, and the state that it folds to. No I/O; `shoal.participant.ledger_file` stores it.

One entry per release, named by study and question::

    reserved ---> stored ---> sending ---> sent
        |           |
        +-----------+---> voided

    reserved   the cost is held; nothing was drawn, or what was drawn is lost and was never seen
    stored     drawn once; the bytes lie in the outbox, and every retry and preview shows these
    sending    the first byte may have left: spent for ever
    sent       acknowledged
    voided     given up before anything left; costs nothing, and is final: a second draw could be chosen by what the first one showed

Held (reserved, stored) and spent (sending, sent) entries count against limits. There is no way back from spent, hence no refund.

Record n carries a hash over its number, its body and the hash of record n - 1. So a changed, missing or exchanged record is found. What a
chain alone cannot show is that the whole file was replaced by an older or a rewritten one; a head noted elsewhere can (`Books.check_head`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

from shoal.errors import BudgetError, IntegrityError, LocalProtocolError, UsageError
from shoal.privacy.events import Event, Relation, Unit
from shoal.privacy.limits import Limit, Usage, measure
from shoal.privacy.records import (
    Head,
    Key,
    LimitSet,
    Move,
    Opened,
    Record,
    Release,
    Reserve,
    Row,
    State,
    Store,
    chain_hash,
    damaged,
    decode,
    encode,
)
from shoal.privacy.refusal import left_for, refuse_if_over
from shoal.privacy.rounding import delta_grains_up, grains_up, show

TRANSITIONS: Mapping[State, frozenset[State]] = {
    State.RESERVED: frozenset({State.STORED, State.VOIDED}),
    State.STORED: frozenset({State.SENDING, State.VOIDED}),
    State.SENDING: frozenset({State.SENT}),
    State.SENT: frozenset(),
    State.VOIDED: frozenset(),
}
HELD = frozenset({State.RESERVED, State.STORED})
SPENT = frozenset({State.SENDING, State.SENT})

_START = bytes(32)
_SHORTEST_HEAD = 16


@lru_cache(maxsize=256)
def _price(epsilon: float, delta: float) -> tuple[int, int]:
    return grains_up(epsilon), delta_grains_up(delta)


class Entry(NamedTuple):
    """One release and how far it has come.

    Parameters
    ----------
    release
        What it is.
    cost, delta
        Its price, in grains of epsilon and of delta, rounded up.
    state, times
        How far it has come, and when it got to each state.
    digest, size
        SHA-256 and length of the stored bytes; None before they are drawn.
    spent_at
        When it was marked as sending; None before.
    """

    release: Release
    cost: int
    delta: int
    state: State
    times: tuple[tuple[State, datetime], ...]
    digest: bytes | None = None
    size: int | None = None
    spent_at: datetime | None = None

    @classmethod
    def reserved(cls, at: datetime, release: Release) -> Entry:
        """The entry of a release that was reserved just now."""
        return cls(release, *_price(release.event.epsilon, release.event.delta), State.RESERVED, ((State.RESERVED, at),))

    @property
    def study(self) -> str:
        return self.release.study

    @property
    def source(self) -> str:
        return self.release.source

    @property
    def event(self) -> Event:
        return self.release.event

    def to_dict(self) -> dict[str, object]:
        """Everything but the stored bytes, as plain data."""
        release = self.release
        return {
            "study": release.study,
            "question": release.question,
            "title": release.title,
            "source": release.source,
            "recipient": release.recipient,
            "state": self.state.value,
            "times": {state.value: at.isoformat() for state, at in self.times},
            "bytes": self.size,
            "sha256": self.digest.hex() if self.digest is not None else None,
            "event": release.event.to_dict(),
        }


@dataclass(frozen=True, slots=True)
class Total:
    """Plain sums over all releases of one source, unit and relation, in grains; never added across units.

    ``adversaries`` are all that the releases name: the sums hold against each of them at most.
    """

    source: str
    unit: Unit
    relation: Relation
    adversaries: tuple[str, ...]
    spent: int
    held: int
    spent_delta: int
    held_delta: int
    releases: int


class Books:
    """The state of a ledger: the fold of its records.

    `seal` makes the next record and changes nothing; `apply` checks a stored record and folds it in.

    Examples
    --------
    >>> books = Books()
    >>> books.apply(books.seal(Opened(datetime(2030, 1, 1, tzinfo=UTC))))
    >>> books.head.seq, len(books.entries)
    (1, 0)
    """

    def __init__(self) -> None:
        self.entries: dict[Key, Entry] = {}
        self.limits: dict[tuple[object, ...], Limit] = {}
        self._hashes = [_START]
        self._latest = datetime.min.replace(tzinfo=UTC)

    @property
    def head(self) -> Head:
        return Head(len(self._hashes) - 1, self._hashes[-1])

    def seal(self, record: Record) -> Row:
        """The row to store for a new record, if the record may follow."""
        self._check(record)
        seq, prev = self.head.seq + 1, self.head.hash
        body = encode(record)
        return Row(seq, prev, chain_hash(seq, prev, body), body)

    def apply(self, row: Row) -> None:
        """Fold in the next stored row; an error leaves the state as it was."""
        seq, prev, stored_hash, body = row
        if not (type(seq) is int and type(prev) is type(stored_hash) is type(body) is bytes and seq == len(self._hashes)):
            raise damaged(len(self._hashes), "it is missing, out of place, or not of the form of a record")
        if prev != self._hashes[-1] or stored_hash != chain_hash(seq, prev, body):
            raise damaged(seq, "its hash does not fit its content and the record before it")
        record = decode(body, seq)
        fault = self._fault(record)
        if fault:
            raise damaged(seq, fault)
        self._fold(record)
        self._hashes.append(stored_hash)

    def take(self, record: Record) -> None:
        """Fold in a new record without storing it: for a ledger in memory, which needs no proof against the disk and its owner."""
        self._check(record)
        self._fold(record)
        self._hashes.append(self._hashes[-1])

    def _check(self, record: Record) -> None:
        fault = self._fault(record)
        if fault:
            raise LocalProtocolError(
                "LEDGER-008", fault, why="A release is reserved, stored, marked as sending, and sent; or voided before it goes."
            )

    def _fault(self, record: Record) -> str | None:
        """Why a record may not follow; None where it may."""
        if isinstance(record, Opened) is (len(self._hashes) > 1):
            return "A ledger is opened once, before anything else."
        if isinstance(record, (Store, Move)):
            entry, goal = self.entries.get(record.key), record.state
            if entry is None:
                return f"Question {record.key.question} of this study was never reserved, and so cannot become {goal}."
            if goal not in TRANSITIONS[entry.state]:
                return f"Question {record.key.question} of this study is {entry.state} and cannot become {goal}."
        elif isinstance(record, Reserve) and record.release.key in self.entries:
            return f"Question {record.release.question} of this study was reserved before."
        return None

    def _fold(self, record: Record) -> None:
        self._latest = max(self._latest, record.at)
        if isinstance(record, (Store, Move)):
            at, old = record.at, self.entries[record.key]
            digest, size = (record.digest, record.size) if isinstance(record, Store) else (old.digest, old.size)
            times = (*old.times, (record.state, at))
            # A clock that was set back must not hide what is spent in a period that is over: nothing is dated before what is known.
            spent_at = self._latest if record.state is State.SENDING else old.spent_at
            self.entries[record.key] = Entry(old.release, old.cost, old.delta, record.state, times, digest, size, spent_at)
        elif isinstance(record, Reserve):
            self.entries[record.release.key] = Entry.reserved(record.at, record.release)
        elif isinstance(record, LimitSet):
            limit = record.limit
            self.limits.pop(limit.key, None)
            if limit.caps_anything:
                self.limits[limit.key] = limit

    def find(self, release: Release) -> Entry | None:
        """The entry that a release already has, if any; a question has one price, one source, one recipient and one draw."""
        entry = self.entries.get(release.key)
        if entry is None:
            return None
        if not entry.release.is_same(release):
            raise BudgetError(
                "BUDGET-004",
                f"Question {release.question} of study {release.title} was reserved before, with another price, data source or recipient.",
                why=f"It is {entry.state}: epsilon {show(entry.event.epsilon)} on {entry.source}, for {entry.release.recipient}.",
                fix="Answer a question once. A study that asks anew must ask a question with another name, at its own cost.",
            )
        self.refuse_if_voided(entry)
        return entry

    def refuse_if_voided(self, entry: Entry) -> None:
        """Refuse to answer, or to send the answer to, a question that the participant has given up."""
        if entry.state is State.VOIDED:
            raise BudgetError(
                "BUDGET-005",
                f"Question {entry.release.question} of study {entry.release.title} was voided and stays unanswered.",
                why="A second draw could be chosen by what the first one showed, and would then protect less than it says.",
            )

    def refuse_if_over(self, event: Event, source: str, at: datetime) -> None:
        """Refuse a release that would go over a limit, with what is held counted as if it were spent."""
        refuse_if_over(self.limits.values(), self.charges(), event, source, at)

    def refuse_to_send(self, entry: Entry, at: datetime) -> None:
        """Refuse to send a held release over a limit that was lowered since, or after the clock was set back."""
        refuse_if_over(self.limits.values(), self.charges(), entry.event, entry.source, at, spent_only=True)

    def left(self, event: Event, source: str, at: datetime) -> int:
        """Grains that a release like this one may cost at most."""
        return left_for(self.limits.values(), self.charges(), event, source, at)

    def charges(self) -> list[Entry]:
        """The entries that count: all but the voided."""
        return [entry for entry in self.entries.values() if entry.state is not State.VOIDED]

    def usage(self, at: datetime) -> tuple[Usage, ...]:
        """Every limit, and how much of it is used at a moment."""
        charges = self.charges()
        return tuple(measure(limit, charges, at) for limit in self.limits.values())

    def totals(self) -> tuple[Total, ...]:
        """What is spent and held in all, per source, unit and relation."""
        groups: dict[tuple[str, Unit, Relation], list[Entry]] = {}
        for entry in self.charges():
            scope = entry.event.scope
            groups.setdefault((entry.source, scope.unit, scope.relation), []).append(entry)
        return tuple(_total(*group, entries) for group, entries in sorted(groups.items()))

    def check_head(self, noted: str) -> None:
        """Compare with a head noted earlier, ``seq:hash`` or the hash alone, whole or its first 16 digits or more.

        If the head lies in the chain, nothing up to it was lost or changed. Somebody who can write the file can make
        another chain that is whole in itself; only a head that was kept elsewhere shows that.
        """
        seq, digits = _read_head(noted)
        if seq is not None and seq > self.head.seq:
            raise rolled_back(f"The head that you noted is record {seq}; this ledger ends with record {self.head.seq}.")
        candidates = self._hashes[1:] if seq is None else self._hashes[seq : seq + 1]
        if not any(known.hex().startswith(digits) for known in candidates):
            raise rolled_back(
                "The head that you noted is not in this ledger."
                if seq is None
                else f"Record {seq} of this ledger is not the one whose hash you noted."
            )


def _total(source: str, unit: Unit, relation: Relation, entries: list[Entry]) -> Total:
    def add(price: Callable[[Entry], int], states: frozenset[State]) -> int:
        return sum(price(entry) for entry in entries if entry.state in states)

    adversaries = tuple(sorted({entry.event.scope.adversary for entry in entries}))
    epsilon = add(lambda entry: entry.cost, SPENT), add(lambda entry: entry.cost, HELD)
    delta = add(lambda entry: entry.delta, SPENT), add(lambda entry: entry.delta, HELD)
    return Total(source, unit, relation, adversaries, *epsilon, *delta, len(entries))


def _read_head(noted: str) -> tuple[int | None, str]:
    seq, _, digits = noted.strip().lower().rpartition(":")
    is_hash = _SHORTEST_HEAD <= len(digits) <= 64 and not set(digits) - set("0123456789abcdef")
    if not is_hash or (seq and not (seq.isascii() and seq.isdigit() and 1 <= len(seq) <= 18 and int(seq) > 0)):
        raise UsageError(
            "LEDGER-009",
            f"{noted!r:.90} is not the head of a ledger.",
            why=f"A head is a record's number, a colon and its hash, of which {_SHORTEST_HEAD} digits or more are needed.",
            fix="Give what shoal ledger verify printed, such as 17:0123456789abcdef",
        )
    return int(seq) if seq else None, digits


def rolled_back(what: str) -> IntegrityError:
    """The error for a ledger that lacks records which it once had."""
    return IntegrityError(
        "LEDGER-007",
        what,
        why="The ledger was rolled back: an older copy was put in its place, or it was rewritten. It may count less than was spent.",
        fix="Find the newer file. Until then count what was spent since as spent.",
    )
