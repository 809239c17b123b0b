"""LRU cache and single-flight cache.

`LRUCache` holds values that can be computed again. `SingleFlightCache` is for pages that take time
to make: one thread makes a value once, however many requests wait for it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from starlette.concurrency import run_in_threadpool

Key = TypeVar("Key")
Value = TypeVar("Value")


class LRUCache(Generic[Key, Value]):
    """A least-recently-used cache with a fixed number of values.

    Examples
    --------
    >>> cache = LRUCache[str, int](max_values=2)
    >>> cache.put("a", 1), cache.put("b", 2), cache.get("a"), cache.put("c", 3)
    (1, 2, 1, 3)
    >>> cache.get("a"), cache.get("b"), len(cache)
    (1, None, 2)
    """

    def __init__(self, max_values: int) -> None:
        self._max_values = max_values
        self._values: OrderedDict[Key, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Key) -> Value | None:
        if key in self._values:
            self._values.move_to_end(key)
        return self._values.get(key)

    def put(self, key: Key, value: Value) -> Value:
        """Store a value and return it; drop the least recently used one if there are too many."""
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > self._max_values:
            self._values.popitem(last=False)
        return value

    def drop(self, key: Key) -> None:
        self._values.pop(key, None)


T = TypeVar("T")


class SingleFlightCache(Generic[T]):
    """Values by name, made in a thread, one at a time; the value of a name never changes.

    Notes
    -----
    Anyone may request pages of many studies, again and again. At most one thread is busy with
    them, so that the requests of participants are not delayed by more than that.
    """

    def __init__(self, max_values: int) -> None:
        self._cache: LRUCache[str, T] = LRUCache(max_values)
        self._lock = asyncio.Lock()

    async def get(self, name: str, make: Callable[[], T]) -> T:
        """Return the value of a name; make it if it is not in the cache."""
        value = self._cache.get(name)
        if value is None:
            async with self._lock:
                value = self._cache.get(name)
                if value is None:
                    value = self._cache.put(name, await run_in_threadpool(make))
        return value
