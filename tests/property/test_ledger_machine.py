"""The ledger file against a short model.

The rules are any order of steps, two processes, a moving clock and changing limits.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from shoal.clock import ManualClock
from shoal.errors import BudgetError, LocalProtocolError
from shoal.participant.ledger_file import LedgerFile, ReservedRelease
from shoal.privacy.events import Event, Relation, Scope, Unit
from shoal.privacy.ledger.limits import Limit, Period
from shoal.privacy.ledger.records import ReleaseState

UNITS = st.sampled_from([Unit.PERSON, Unit.RECORD, Unit.UPDATE])
RELATIONS = st.sampled_from(list(Relation))
SOURCES = st.sampled_from(["a.csv", "b.csv"])
FEATURES = st.sampled_from(["age", "sex"])
COSTS = st.sampled_from([0.1, 0.3, 0.5, 1.1])
GRAIN = 10**12


@dataclass
class Model:
    """One release of the model; its cost is in tenths."""

    event: Event
    source: str
    state: ReleaseState = ReleaseState.RESERVED
    payload: bytes = b""
    spent_at: datetime | None = None

    @property
    def tenths(self) -> int:
        return round(10 * self.event.epsilon)


class LedgerMachine(RuleBasedStateMachine):
    questions = Bundle("questions")

    def __init__(self) -> None:
        super().__init__()
        # In memory if the machine has /dev/shm: this tests the order of steps, not the disk.
        self.folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.clock = ManualClock()
        self.handles = [LedgerFile(self.folder / "ledger.db", self.clock) for _ in range(2)]
        self.model: dict[str, Model] = {}
        self.limits: dict[Any, Limit] = {
            usage.limit.key: usage.limit for usage in self.handles[0].limits()
        }
        self.heads: list[str] = []
        self.turn = 0
        self.latest, self.n_records = self.clock.now(), 0

    def teardown(self) -> None:
        for handle in self.handles:
            handle.close()
        shutil.rmtree(self.folder)

    @property
    def ledger(self) -> LedgerFile:
        """The ledger of the process that takes this step; the two processes alternate."""
        self.turn ^= 1
        return self.handles[self.turn]

    def allows(self, event: Event, source: str, with_held: bool) -> bool:
        """Return whether the limits allow an event, counted in tenths by their definition."""
        is_bounded = False
        for limit in self.limits.values():
            if (
                limit.unit not in (None, event.scope.unit)
                or limit.source not in (None, source)
                or limit.feature not in (None, *event.reads)
            ):
                continue
            is_bounded |= limit.grains is not None and limit.feature is None
            since = limit.period.start(self.clock.now())
            counted = [
                item
                for item in self.model.values()
                if limit.unit in (None, item.event.scope.unit)
                and limit.source in (None, item.source)
                and limit.feature in (None, *item.event.reads)
                and item.state is not ReleaseState.VOIDED
                and (with_held if item.spent_at is None else item.spent_at >= since)
            ]
            if limit.releases is not None and len(counted) + 1 > limit.releases:
                return False
            if limit.grains is None:
                continue
            relations = {item.event.scope.relation for item in counted} | {event.scope.relation}
            if limit.relation is Relation.ADD_REMOVE and Relation.REPLACE in relations:
                return False
            total = sum(
                item.tenths * (2 if item.event.scope.relation is not limit.relation else 1)
                for item in counted
            )
            total += round(10 * event.epsilon) * (
                2 if event.scope.relation is not limit.relation else 1
            )
            if total * GRAIN > 10 * limit.grains:
                return False
        return is_bounded

    @rule(
        target=questions,
        unit=UNITS,
        relation=RELATIONS,
        source=SOURCES,
        feature=FEATURES,
        cost=COSTS,
    )
    def reserve(
        self, unit: Unit, relation: Relation, source: str, feature: str, cost: float
    ) -> str:
        question = f"q{len(self.model)}"
        event = Event("test", {}, Scope(unit, relation, "everyone"), cost, reads=(feature,))
        is_allowed = self.allows(event, source, with_held=True)
        try:
            asked = self.ledger.reserve(
                "d1", question, event, source=source, recipient="x", title="y"
            )
        except BudgetError:
            assert not is_allowed
            return "never reserved"
        assert is_allowed
        assert isinstance(asked, ReservedRelease)
        self.model[question] = Model(event, source)
        return question

    @rule(question=questions)
    def reserve_again(self, question: str) -> None:
        if question not in self.model:
            return
        item = self.model[question]
        try:
            asked = self.ledger.reserve(
                "d1", question, item.event, source=item.source, recipient="x", title="y"
            )
        except BudgetError:
            assert item.state is ReleaseState.VOIDED
            return
        assert isinstance(asked, ReservedRelease) is (item.state is ReleaseState.RESERVED)
        if not isinstance(asked, ReservedRelease):
            assert asked.payload == item.payload

    @rule(question=questions, payload=st.binary(max_size=40))
    def store(self, question: str, payload: bytes) -> None:
        item = self.model.get(question)
        try:
            self.ledger.store("d1", question, payload)
        except LocalProtocolError:
            assert (
                item is None
                or item.state is ReleaseState.VOIDED
                or (item.state is not ReleaseState.RESERVED and payload != item.payload)
            )
            return
        assert item is not None
        if item.state is ReleaseState.RESERVED:
            item.state, item.payload = ReleaseState.STORED, payload
        assert item.payload == payload

    @rule(question=questions)
    def mark_sending(self, question: str) -> None:
        item = self.model.get(question)
        try:
            payload = self.ledger.mark_sending("d1", question)
        except LocalProtocolError:
            assert item is None or item.state is ReleaseState.RESERVED
            return
        except BudgetError:
            assert item is not None
            assert item.state is ReleaseState.VOIDED or not self.allows(
                item.event, item.source, with_held=False
            )
            return
        assert item is not None
        if item.state is ReleaseState.STORED:
            assert self.allows(item.event, item.source, with_held=False)
            item.state, item.spent_at = ReleaseState.SENDING, max(self.latest, self.clock.now())
        assert payload == item.payload

    @rule(question=questions)
    def mark_sent(self, question: str) -> None:
        item = self.model.get(question)
        try:
            self.ledger.mark_sent("d1", question)
        except LocalProtocolError:
            assert item is None or item.state not in (ReleaseState.SENDING, ReleaseState.SENT)
            return
        assert item is not None
        item.state = ReleaseState.SENT

    @rule(question=questions)
    def void(self, question: str) -> None:
        item = self.model.get(question)
        try:
            self.ledger.void("d1", question)
        except LocalProtocolError:
            assert item is None or item.state in (ReleaseState.SENDING, ReleaseState.SENT)
            return
        assert item is not None
        item.state, item.spent_at = ReleaseState.VOIDED, None

    @rule(
        unit=st.none() | UNITS,
        relation=RELATIONS,
        period=st.sampled_from(list(Period)),
        source=st.none() | SOURCES,
        feature=st.none() | FEATURES,
        tenths=st.none() | st.integers(0, 60),
        releases=st.none() | st.integers(0, 5),
    )
    def set_limit(
        self,
        unit: Unit | None,
        relation: Relation,
        period: Period,
        source: str | None,
        feature: str | None,
        tenths: int | None,
        releases: int | None,
    ) -> None:
        limit = Limit(
            unit,
            None if tenths is None else tenths * GRAIN // 10,
            relation,
            period,
            source,
            feature,
            releases,
        )
        self.ledger.set_limit(limit)
        self.limits.pop(limit.key, None)
        if tenths is not None or releases is not None:
            self.limits[limit.key] = limit

    @rule(days=st.sampled_from([-40, 1, 40, 400]))
    def advance_clock(self, days: int) -> None:
        self.clock.advance(days * 86400)
        self.ledger.confirm_date()

    @rule(which=st.integers(0, 1))
    def restart(self, which: int) -> None:
        self.heads.append(str(self.handles[which].read_head()))
        self.handles[which].close()
        self.handles[which] = LedgerFile(self.folder / "ledger.db", self.clock)

    @initialize()
    def record_head(self) -> None:
        self.heads.append(str(self.ledger.read_head()))

    @invariant()
    def file_equals_model(self) -> None:
        ledger = self.ledger
        if ledger.read_head().seq > self.n_records:
            self.latest, self.n_records = max(self.latest, self.clock.now()), ledger.read_head().seq
        assert {e.release.question: (e.state, e.spent_at) for e in ledger.entries()} == {
            q: (i.state, i.spent_at) for q, i in self.model.items()
        }
        counted = [item for item in self.model.values() if item.state is not ReleaseState.VOIDED]
        groups = {
            (item.source, item.event.scope.unit, item.event.scope.relation) for item in counted
        }
        totals = {
            (total.source, total.unit, total.relation): (total.spent, total.held)
            for total in ledger.totals()
        }
        assert totals == {
            group: tuple(
                sum(
                    item.tenths * GRAIN // 10
                    for item in counted
                    if (item.source, item.event.scope.unit, item.event.scope.relation) == group
                    and (item.spent_at is not None) is is_spent
                )
                for is_spent in (True, False)
            )
            for group in groups
        }
        assert {usage.limit.key: usage.limit for usage in ledger.limits()} == self.limits

    @invariant()
    def every_recorded_head_still_exists(self) -> None:
        for head in self.heads:
            self.handles[0].verify(head)


LedgerMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
TestLedgerMachine = LedgerMachine.TestCase
