"""Random sequences of releases of all protocols on one source, against an oracle.

The oracle prices each study by the definitions of docs/theory/proofs.md: rho within a study, one
conversion, factors for unit and relation, plain sums between studies.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction

import hypothesis.strategies as st
from hypothesis import given, settings

from shoal.errors import BudgetError
from shoal.privacy.accountant import pure_epsilon_to_rho, rho_to_epsilon
from shoal.privacy.events import Event, Relation, Scope, Unit
from shoal.privacy.ledger.charges import StudyBudget
from shoal.privacy.ledger.limits import Limit
from shoal.privacy.ledger.records import (
    LedgerRelease,
    LimitRecord,
    OpeningRecord,
    ReleaseState,
    ReserveRecord,
    StoreRecord,
    TransitionRecord,
)
from shoal.privacy.ledger.state import LedgerState
from shoal.privacy.rounding import DELTA_GRAINS, GRAINS, grains_down, grains_up

AT = datetime(2030, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Kind:
    """One kind of study: how its unit and relation count for a person with up to two rows."""

    scope: Scope
    factor: int
    rho: float | None = None
    delta: float = 0.0
    budget: StudyBudget | None = None


KINDS = {
    "anonml": Kind(Scope(Unit.PERSON, Relation.REPLACE, "everyone"), 1),
    "ddml": Kind(Scope(Unit.UPDATE, Relation.REPLACE, "everyone"), 1),
    "ddml, delta": Kind(
        Scope(Unit.UPDATE, Relation.REPLACE, "everyone"), 1, 0.01, 1e-7, StudyBudget(0.03, 1e-6)
    ),
    "sdq": Kind(Scope(Unit.RECORD, Relation.ADD_REMOVE, "everyone"), 4),
    "sdq, person": Kind(Scope(Unit.PERSON, Relation.ADD_REMOVE, "everyone"), 2),
    "pfds, delta": Kind(
        Scope(Unit.RECORD, Relation.ADD_REMOVE, "everyone"),
        4,
        0.002,
        1e-7,
        StudyBudget(0.004, 1e-6),
    ),
}
LIMIT = Limit(None, grains_down(4.0), delta_grains=DELTA_GRAINS // 1000, max_rows_per_person=2)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(sorted(KINDS)),
        st.integers(0, 1),
        st.sampled_from([0.05, 0.1, 0.3, 1.1]),
        st.sampled_from(["reserve", "send", "void"]),
    ),
    max_size=30,
)


def count_study(kind: Kind, epsilons: list[float]) -> int:
    """Return the grains that a study counts."""
    if kind.budget is None or not epsilons:
        return kind.factor * sum(grains_up(epsilon) for epsilon in epsilons)
    left, total, is_covered = Fraction(repr(kind.budget.rho)), 0, False
    for epsilon in epsilons:
        rho = Fraction(repr(kind.rho or pure_epsilon_to_rho(epsilon)))
        if rho <= left:
            left, is_covered = left - rho, True
        else:
            total += grains_up(epsilon)
    total += grains_up(rho_to_epsilon(*kind.budget)) if is_covered else 0
    return kind.factor * total


@given(STEPS)
@settings(deadline=None)
def test_releases_of_all_protocols_never_exceed_limit_and_equal_oracle(
    steps: list[tuple[str, int, float, str]],
) -> None:
    books = LedgerState()
    books.apply_unstored(OpeningRecord(AT))
    books.apply_unstored(LimitRecord(AT, LIMIT))
    counted: dict[tuple[str, int], list[float]] = {}

    def count() -> int:
        return sum(count_study(KINDS[name], found) for (name, _), found in counted.items())

    for i, (name, number, epsilon, goal) in enumerate(steps):
        kind, study = KINDS[name], counted.setdefault((name, number), [])
        event = Event("test", {}, kind.scope, epsilon, kind.delta, kind.rho)
        release = LedgerRelease(f"{name} {number}", f"q{i}", event, "me.csv", "x", "y", kind.budget)
        study.append(epsilon)
        is_allowed = count() <= (LIMIT.grains or 0)
        try:
            books.refuse_if_over(release, AT)
        except BudgetError as error:
            assert error.code == "BUDGET-002" and not is_allowed
            study.pop()
        else:
            assert is_allowed
            books.apply_unstored(ReserveRecord(AT, release))
            books.apply_unstored(StoreRecord(AT, release.key, bytes(32), 1))
            if goal == "send":
                books.refuse_sending_if_over(books.entries[release.key], AT)
                books.apply_unstored(TransitionRecord(AT, release.key, ReleaseState.SENDING))
            elif goal == "void":
                books.apply_unstored(TransitionRecord(AT, release.key, ReleaseState.VOIDED))
                study.pop()
        [usage] = books.list_usage(AT)
        assert usage.spent + usage.held == count() <= 4 * GRAINS


@given(
    epsilon=st.floats(1e-3, 3.0),
    delta=st.sampled_from([0.0, 1e-9, 1e-6]),
    rows=st.integers(1, 20),
)
def test_group_of_rows_counts_by_chain_of_neighbours(
    epsilon: float, delta: float, rows: int
) -> None:
    """Walk from one input to the other: after each neighbour, P <= e^epsilon P' + delta."""
    event = Event("test", {}, Scope(Unit.RECORD, Relation.ADD_REMOVE, "everyone"), epsilon, delta)
    books = LedgerState()
    limit = Limit(None, None, delta_grains=DELTA_GRAINS - 1, max_rows_per_person=rows)
    books.apply_unstored(OpeningRecord(AT))
    books.apply_unstored(LimitRecord(AT, limit))
    books.apply_unstored(ReserveRecord(AT, LedgerRelease("s", "q", event, "me.csv", "x", "y")))
    [usage] = books.list_usage(AT)
    walked = 0.0
    for _ in range(2 * rows):
        walked = min(1.0, walked * 2.718281828459045**epsilon + delta)
    assert usage.held == 2 * rows * grains_up(epsilon)
    assert walked * (1 - 1e-9) <= usage.delta / DELTA_GRAINS <= walked * (1 + 1e-9) + 1e-17
