"""Ledger state machine: entries, totals and the hash chain.

The ledger is a hash-chained list of records; the state is the result of applying them in order.
There is no I/O here: `shoal.participant.ledger_file` stores the records, and the in-memory ledger
of simulations applies them without storing.

One entry per release, named by study and question::

    reserved ---> stored ---> sending ---> sent
        |           |
        +-----------+---> voided

    reserved   the cost is held; nothing was drawn, or the draw was lost before anyone saw it
    stored     drawn once; the bytes are in the outbox, and every retry sends them
    sending    the first byte may have left: spent for ever
    sent       acknowledged
    voided     given up before anything was sent; costs nothing and is final: a second draw could
               be chosen by what the first one showed

Held (reserved, stored) and spent (sending, sent) entries count towards limits. A spent entry never
becomes unspent, hence there is no refund.

A clock that runs ahead would start a new period and so free the budget of the present one. So a
release is refused if the clock is more than `MAX_CLOCK_LEAD` ahead of the last record that opened
the ledger, reserved or sent a release, or confirmed the date. Other records do not count: a
program writes them without a check.

Record n carries a hash over its number, its body and the hash of record n - 1. So a changed,
missing or swapped record is detected. The chain alone does not show that the whole file was
replaced by an older or a rewritten one; a head noted elsewhere does (`LedgerState.check_head`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

from shoal.errors import (
    BudgetError,
    IntegrityError,
    LocalProtocolError,
    StoreError,
    UsageError,
)
from shoal.privacy.events import Event, Relation, Unit
from shoal.privacy.ledger.charges import Charge, StudyBudget, price_charges
from shoal.privacy.ledger.limits import (
    DEFAULT_LIMITS,
    Limit,
    LimitUsage,
    Period,
    measure_usage,
    refuse_if_over,
)
from shoal.privacy.ledger.records import (
    DateRecord,
    LedgerHead,
    LedgerRecord,
    LedgerRelease,
    LedgerRow,
    LimitRecord,
    OpeningRecord,
    ReleaseKey,
    ReleaseState,
    ReserveRecord,
    StoreRecord,
    TransitionRecord,
    chain_hash,
    damaged_record_error,
    decode_record,
    encode_record,
)
from shoal.privacy.rounding import delta_grains_up, format_epsilon, grains_up

TRANSITIONS: Mapping[ReleaseState, frozenset[ReleaseState]] = {
    ReleaseState.RESERVED: frozenset({ReleaseState.STORED, ReleaseState.VOIDED}),
    ReleaseState.STORED: frozenset({ReleaseState.SENDING, ReleaseState.VOIDED}),
    ReleaseState.SENDING: frozenset({ReleaseState.SENT}),
    ReleaseState.SENT: frozenset(),
    ReleaseState.VOIDED: frozenset(),
}
HELD_STATES = frozenset({ReleaseState.RESERVED, ReleaseState.STORED})
SPENT_STATES = frozenset({ReleaseState.SENDING, ReleaseState.SENT})

MAX_CLOCK_LEAD = timedelta(days=30)
"""How far the clock may be ahead of the last record without a confirmation by the owner."""

_GENESIS_HASH = bytes(32)
_MIN_HEAD_DIGITS = 16


@lru_cache(maxsize=256)
def _price_in_grains(epsilon: float, delta: float) -> tuple[int, int]:
    return grains_up(epsilon), delta_grains_up(delta)


class LedgerEntry(NamedTuple):
    """One release and its state.

    Parameters
    ----------
    cost, delta
        Its price, in grains of epsilon and of delta, rounded up.
    times
        The time of each state that it has reached.
    digest, size
        SHA-256 and length of the stored bytes; None before they are drawn.
    spent_at
        When it was marked as sending; None before.
    """

    release: LedgerRelease
    cost: int
    delta: int
    state: ReleaseState
    times: tuple[tuple[ReleaseState, datetime], ...]
    digest: bytes | None = None
    size: int | None = None
    spent_at: datetime | None = None

    @classmethod
    def make_reserved(cls, at: datetime, release: LedgerRelease) -> LedgerEntry:
        """Make the entry of a release that was just reserved."""
        return cls(
            release,
            *_price_in_grains(release.event.epsilon, release.event.delta),
            ReleaseState.RESERVED,
            ((ReleaseState.RESERVED, at),),
        )

    @property
    def study(self) -> str:
        return self.release.study

    @property
    def source(self) -> str:
        return self.release.source

    @property
    def event(self) -> Event:
        return self.release.event

    @property
    def budget(self) -> StudyBudget | None:
        return self.release.budget

    def to_dict(self) -> dict[str, object]:
        """Return everything but the stored bytes as plain data."""
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
class LedgerTotal:
    """Sums over all releases of one source, unit and relation, in grains.

    These figures are for display and are not added across units; a limit for all units together
    converts them first. ``adversaries`` are all that the releases name: a sum is a bound for each
    of them at most.
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


class LedgerState:
    """The state of a ledger: the result of applying its records.

    `make_row` makes the next record and changes nothing; `apply` checks a stored record and applies
    it.

    Examples
    --------
    >>> ledger = LedgerState()
    >>> ledger.apply(ledger.make_row(OpeningRecord(datetime(2030, 1, 1, tzinfo=UTC))))
    >>> ledger.head.seq, len(ledger.entries)
    (1, 0)
    """

    def __init__(self) -> None:
        self.entries: dict[ReleaseKey, LedgerEntry] = {}
        self.limits: dict[tuple[object, ...], Limit] = {}
        self._had_common_limit = False
        self._hashes = [_GENESIS_HASH]
        self._latest_time = self._checked_time = datetime.min.replace(tzinfo=UTC)

    @property
    def head(self) -> LedgerHead:
        return LedgerHead(len(self._hashes) - 1, self._hashes[-1])

    def make_row(self, record: LedgerRecord) -> LedgerRow:
        """Return the row to store for a new record, if the record may follow."""
        self._check_record(record)
        seq, prev = self.head.seq + 1, self.head.hash
        body = encode_record(record)
        return LedgerRow(seq, prev, chain_hash(seq, prev, body), body)

    def apply(self, row: LedgerRow) -> None:
        """Apply the next stored row; an error leaves the state unchanged."""
        seq, prev, stored_hash, body = row
        if not (
            type(seq) is int
            and type(prev) is type(stored_hash) is type(body) is bytes
            and seq == len(self._hashes)
        ):
            raise damaged_record_error(
                len(self._hashes), "it is missing, out of place, or not of the form of a record"
            )
        if prev != self._hashes[-1] or stored_hash != chain_hash(seq, prev, body):
            raise damaged_record_error(
                seq, "its hash does not fit its content and the record before it"
            )
        record = decode_record(body, seq)
        fault = self._find_fault(record)
        if fault:
            raise damaged_record_error(seq, fault)
        self._apply_record(record)
        self._hashes.append(stored_hash)

    def apply_unstored(self, record: LedgerRecord) -> None:
        """Apply a new record without storing it.

        This is for a ledger in memory, which needs no protection against changes on disk.
        """
        self._check_record(record)
        self._apply_record(record)
        self._hashes.append(self._hashes[-1])

    def _check_record(self, record: LedgerRecord) -> None:
        fault = self._find_fault(record)
        if fault:
            raise LocalProtocolError(
                "LEDGER-008",
                fault,
                why="A release is reserved, stored, marked as sending, and sent; or voided before "
                "it is sent.",
            )

    def _find_fault(self, record: LedgerRecord) -> str | None:
        """Return why a record may not follow, or None if it may."""
        if isinstance(record, OpeningRecord) is (len(self._hashes) > 1):
            return "A ledger has one opening record, and it is the first."
        if isinstance(record, (StoreRecord, TransitionRecord)):
            entry, goal = self.entries.get(record.key), record.state
            if entry is None:
                return (
                    f"Question {record.key.question} of this study was never reserved and cannot "
                    f"become {goal}."
                )
            if goal not in TRANSITIONS[entry.state]:
                return (
                    f"Question {record.key.question} of this study is {entry.state} and cannot "
                    f"become {goal}."
                )
        elif isinstance(record, ReserveRecord) and record.release.key in self.entries:
            return f"Question {record.release.question} of this study was reserved before."
        return None

    def _apply_record(self, record: LedgerRecord) -> None:
        self._latest_time = max(self._latest_time, record.at)
        if _is_dated(record):
            self._checked_time = max(self._checked_time, record.at)
        if isinstance(record, (StoreRecord, TransitionRecord)):
            at, old = record.at, self.entries[record.key]
            digest, size = (
                (record.digest, record.size)
                if isinstance(record, StoreRecord)
                else (old.digest, old.size)
            )
            times = (*old.times, (record.state, at))
            # If the clock is set back, a release must not be dated into an earlier period: no
            # record is dated before the latest known time.
            spent_at = self._latest_time if record.state is ReleaseState.SENDING else old.spent_at
            self.entries[record.key] = LedgerEntry(
                old.release, old.cost, old.delta, record.state, times, digest, size, spent_at
            )
        elif isinstance(record, ReserveRecord):
            self.entries[record.release.key] = LedgerEntry.make_reserved(record.at, record.release)
        elif isinstance(record, LimitRecord):
            limit = record.limit
            self._had_common_limit |= limit.unit is None
            self.limits.pop(limit.key, None)
            if limit.has_cap:
                self.limits[limit.key] = limit

    def find_entry(self, release: LedgerRelease) -> LedgerEntry | None:
        """Return the entry that a release already has, if any.

        A question has one price, one source, one recipient and one draw.
        """
        entry = self.entries.get(release.key)
        if entry is None:
            return None
        if not entry.release.is_same(release):
            raise BudgetError(
                "BUDGET-004",
                f"Question {release.question} of study {release.title} was reserved before, with "
                "another price, data source or recipient.",
                why=f"It is {entry.state}: epsilon {format_epsilon(entry.event.epsilon)} on "
                f"{entry.source}, for {entry.release.recipient}.",
                fix="Answer each question once. To ask again, the study needs a question with "
                "another name, which is charged separately.",
            )
        self.refuse_if_voided(entry)
        return entry

    def refuse_if_voided(self, entry: LedgerEntry) -> None:
        """Refuse to answer a question, or send its answer, after the participant voided it."""
        if entry.state is ReleaseState.VOIDED:
            raise BudgetError(
                "BUDGET-005",
                f"Question {entry.release.question} of study {entry.release.title} was voided and "
                "stays unanswered.",
                why="A second draw could be chosen by what the first one showed, and would then "
                "protect less than its epsilon states.",
            )

    def make_common_limit(self) -> Limit | None:
        """Return the limit for all units that a ledger of an earlier version lacks, if it does.

        Its caps are the largest of the yearly limits that the owner has for single units, or else
        the default. The limits for single units stay in force.
        """
        if self._had_common_limit:
            return None
        [default] = DEFAULT_LIMITS
        yearly = [
            limit
            for limit in self.limits.values()
            if limit.key == (limit.unit, default.relation, Period.YEAR, None, None)
        ]
        grains = [limit.grains for limit in yearly if limit.grains is not None]
        deltas = [limit.delta_grains for limit in yearly if limit.delta_grains is not None]
        return replace(
            default,
            grains=max(grains, default=default.grains),
            delta_grains=max(deltas, default=default.delta_grains),
        )

    def is_clock_ahead(self, at: datetime) -> bool:
        """Return whether the clock is too far ahead of the last record to trust it."""
        return at - self._checked_time > MAX_CLOCK_LEAD

    def refuse_if_ahead(self, at: datetime) -> None:
        """Raise ``LEDGER-012`` if the clock is too far ahead of the last record."""
        if self.is_clock_ahead(at):
            lead = at - self._checked_time
            raise StoreError(
                "LEDGER-012",
                f"Your clock shows {at:%Y-%m-%d}, {lead.days} days after the last record of the "
                f"ledger, {self._checked_time:%Y-%m-%d}.",
                why="A clock that runs ahead would start a new period and free the budget of the "
                "present one. Nothing was sent.",
                fix="If the clock is wrong, set it. If it is right, give today's date in UTC: "
                f"shoal join URL --date {at:%Y-%m-%d}",
            )

    def refuse_if_over(self, release: LedgerRelease, at: datetime) -> None:
        """Refuse a release that would exceed a limit; held releases count as spent."""
        asked = LedgerEntry.make_reserved(at, release)
        refuse_if_over(self.limits.values(), self.list_charges(), asked, at)

    def refuse_sending_if_over(self, entry: LedgerEntry, at: datetime) -> None:
        """Refuse to send a held release that now exceeds a limit.

        The limit may have been lowered since, or the clock was set back.
        """
        refuse_if_over(self.limits.values(), self.list_charges(), entry, at, spent_only=True)

    def list_charges(self) -> list[LedgerEntry]:
        """Return the entries that count: all but the voided ones."""
        return [entry for entry in self.entries.values() if entry.state is not ReleaseState.VOIDED]

    def list_usage(self, at: datetime) -> tuple[LimitUsage, ...]:
        """Return every limit with its usage at a moment."""
        charges = self.list_charges()
        return tuple(measure_usage(limit, charges, at) for limit in self.limits.values())

    def compute_totals(self) -> tuple[LedgerTotal, ...]:
        """Return the totals of spent and held releases per source, unit and relation."""
        groups: dict[tuple[str, Unit, Relation], list[LedgerEntry]] = {}
        for entry in self.list_charges():
            scope = entry.event.scope
            groups.setdefault((entry.source, scope.unit, scope.relation), []).append(entry)
        return tuple(_sum_entries(*group, entries) for group, entries in sorted(groups.items()))

    def check_head(self, noted: str) -> None:
        """Check that a head noted earlier is in the chain.

        A head is ``seq:hash`` or the hash alone, whole or its first 16 digits or more.

        If the head is in the chain, nothing up to it was lost or changed. Somebody who can write
        the file can make another valid chain; only a head that was kept elsewhere reveals that.
        """
        seq, digits = _parse_head(noted)
        if seq is not None and seq > self.head.seq:
            raise rolled_back_error(
                f"The head that you noted is record {seq}; this ledger ends with record "
                f"{self.head.seq}."
            )
        candidates = self._hashes[1:] if seq is None else self._hashes[seq : seq + 1]
        if not any(known.hex().startswith(digits) for known in candidates):
            raise rolled_back_error(
                "The head that you noted is not in this ledger."
                if seq is None
                else f"Record {seq} of this ledger does not have the hash that you noted."
            )


def _is_dated(record: LedgerRecord) -> bool:
    """Return whether a record shows the date: its clock was checked when it was made."""
    return isinstance(record, (OpeningRecord, DateRecord, ReserveRecord)) or (
        isinstance(record, TransitionRecord) and record.state is ReleaseState.SENDING
    )


def sum_prices(charges: Iterable[Charge]) -> tuple[int, int]:
    """Return the sums of epsilon and delta, in grains, under the releases' own unit and relation.

    All releases must have the same unit and relation.
    """
    prices = list(price_charges(charges))
    return sum(price.grains for price in prices), sum(price.delta_grains for price in prices)


def _sum_entries(
    source: str, unit: Unit, relation: Relation, entries: list[LedgerEntry]
) -> LedgerTotal:
    adversaries = tuple(sorted({entry.event.scope.adversary for entry in entries}))
    epsilon, delta = sum_prices(entry for entry in entries if entry.state in SPENT_STATES)
    all_epsilon, all_delta = sum_prices(entries)
    return LedgerTotal(
        source,
        unit,
        relation,
        adversaries,
        spent=epsilon,
        held=max(0, all_epsilon - epsilon),
        spent_delta=delta,
        held_delta=max(0, all_delta - delta),
        releases=len(entries),
    )


def _parse_head(noted: str) -> tuple[int | None, str]:
    seq, _, digits = noted.strip().lower().rpartition(":")
    is_hash = _MIN_HEAD_DIGITS <= len(digits) <= 64 and not set(digits) - set("0123456789abcdef")
    if not is_hash or (
        seq and not (seq.isascii() and seq.isdigit() and 1 <= len(seq) <= 18 and int(seq) > 0)
    ):
        raise UsageError(
            "LEDGER-009",
            f"{noted!r:.90} is not the head of a ledger.",
            why="A head is a record's number, a colon and at least the first "
            f"{_MIN_HEAD_DIGITS} digits of its hash.",
            fix="Give the head that shoal ledger verify printed, such as 17:0123456789abcdef",
        )
    return int(seq) if seq else None, digits


def rolled_back_error(what: str) -> IntegrityError:
    """Return the error for a ledger that lacks records which it once had."""
    return IntegrityError(
        "LEDGER-007",
        what,
        why="The ledger was rolled back: it was replaced by an older copy or rewritten. "
        "It may count less than was spent.",
        fix="Find the newer file. Until then, treat later releases as spent.",
    )
