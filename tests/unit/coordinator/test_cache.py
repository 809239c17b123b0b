"""The LRU cache: its limit, and which value is dropped."""

from __future__ import annotations

from shoal.coordinator.cache import LRUCache


def test_cache_drops_least_recently_used_value() -> None:
    recent = LRUCache[int, str](max_values=3)
    for i in range(3):
        assert recent.put(i, str(i)) == str(i)
    assert recent.get(0) == "0"
    recent.put(1, "one")
    recent.put(3, "3")
    assert [recent.get(i) for i in range(4)] == ["0", "one", None, "3"]
    for i in range(100):
        recent.put(i, "x")
    assert len(recent) == 3


def test_drop_removes_value_and_can_be_repeated() -> None:
    recent = LRUCache[int, str](max_values=3)
    recent.put(1, "one")
    recent.drop(1)
    recent.drop(1)
    assert recent.get(1) is None and len(recent) == 0
