"""Faults reject invalid values; a crashing ledger fails around its calls only."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.errors import UsageError
from shoal.privacy.events import LOCAL_PERSON, Event
from shoal.protocols.base import MemoryLedger
from shoal.simulation.network import CrashError, CrashingLedger, Faults


@pytest.mark.parametrize(
    "wrong",
    [
        {"loss": -0.1},
        {"duplicate": 1.5},
        {"crash": float("nan")},
        {"amnesia": 2},
        {"min_delay": 3, "max_delay": 2},
        {"min_delay": -1},
        {"retry": 0},
        {"downtime": 0},
        {"absences": {"ann": (500, 100)}},
        {"absences": {"ann": (500, 500)}},
        {"absences": {"bob": (0, None), "ann": (-1, 100)}},
        {"absences": {"ann": (-1, None)}},
    ],
)
def test_faults_reject_invalid_values(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Faults(**wrong)


def test_faults_accept_valid_absences() -> None:
    assert len(Faults(absences={"ann": (0, 1), "bob": (7, None)}).absences) == 2


def test_crashing_ledger_keeps_what_a_call_has_written() -> None:
    calls = 0

    def shake() -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise CrashError

    ledger = MemoryLedger()
    fragile = CrashingLedger(ledger, shake)
    fragile.reserve(
        "s", "q", Event("x", {}, LOCAL_PERSON, 0.5), source="a", recipient="b", title="c"
    )
    with pytest.raises(CrashError):
        fragile.store("s", "q", b"x")
    assert fragile.list_unsent("s") == {"q": b"x"}
    assert fragile.mark_sending("s", "q") == b"x"
    fragile.mark_sent("s", "q")
    assert fragile.list_unsent("s") == {}


def test_account_of_crashing_ledger_crashes_too() -> None:
    def crash() -> None:
        raise CrashError

    account = CrashingLedger(MemoryLedger(), crash).account(bytes(32), "a", "b", "c")
    with pytest.raises(CrashError):
        account.reserve("q", Event("x", {}, LOCAL_PERSON, 0.5))
