"""So much is kept at most, and what was asked for last stays."""

from __future__ import annotations

from shoal.coordinator.recent import Recent


def test_what_was_not_asked_for_longest_goes_first() -> None:
    recent = Recent[int, str](most=3)
    for i in range(3):
        assert recent.put(i, str(i)) == str(i)
    assert recent.get(0) == "0"
    recent.put(1, "one")
    recent.put(3, "3")
    assert [recent.get(i) for i in range(4)] == ["0", "one", None, "3"]
    for i in range(100):
        recent.put(i, "x")
    assert len(recent) == 3


def test_what_is_dropped_is_gone_and_may_be_dropped_again() -> None:
    recent = Recent[int, str](most=3)
    recent.put(1, "one")
    recent.drop(1)
    recent.drop(1)
    assert recent.get(1) is None and len(recent) == 0
