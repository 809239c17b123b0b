"""What is kept in memory because it is needed again soon, and can be had again where it is not there."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """So many values at most: those that were asked for last.

    Examples
    --------
    >>> recent = Recent[str, int](most=2)
    >>> recent.put("a", 1), recent.put("b", 2), recent.get("a"), recent.put("c", 3)
    (1, 2, 1, 3)
    >>> recent.get("a"), recent.get("b"), len(recent)
    (1, None, 2)
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[Key, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Key) -> Value | None:
        if key in self._values:
            self._values.move_to_end(key)
        return self._values.get(key)

    def put(self, key: Key, value: Value) -> Value:
        """Keep a value, and forget the one that was not asked for longest, if there are too many; the value."""
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > self._most:
            self._values.popitem(last=False)
        return value

    def drop(self, key: Key) -> None:
        self._values.pop(key, None)
