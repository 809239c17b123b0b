"""Whose reads are whose, as far as times tell: what an observer does with requests under no name before it looks for packets' senders.

Whoever takes part is seen under its name once, as it enrols, and reads under no name from then on: it asks for news, waits for the answer,
and asks again. So a read that begins just after another has ended is likely to be of the same participant, and the first one of whoever has
just enrolled. Each read, in the order in which they began, is given to that participant whose last request has ended last before it. Nobody
waits for two answers at once; a read that begins while everyone waits is nobody's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from shoal.attacks.linker import Trace


def chained(named: Sequence[tuple[str, Trace]], reads: Sequence[Trace]) -> list[tuple[str, Trace]]:
    """All traces under names in the order of their times: those that had one, and the reads to which one is given.

    Parameters
    ----------
    named
        Who was seen, and what of them; each has a time.
    reads
        What was seen under no name; each has a time. What has no end is taken to go on.

    Examples
    --------
    >>> enrolled = [("ann", Trace("enrolment", 1.0, until=1.1)), ("bob", Trace("enrolment", 2.0, until=2.1))]
    >>> reads = [Trace("read", 1.2, until=30.0), Trace("read", 2.2, until=9.0), Trace("read", 30.1), Trace("read", 9.1)]
    >>> [who for who, trace in chained(enrolled, reads) if trace.kind == "read"]
    ['ann', 'bob', 'bob', 'ann']
    """
    found: list[tuple[str, Trace]] = []
    free_since: dict[str, float] = {}
    for who, trace in sorted([*named, *((None, trace) for trace in reads)], key=lambda pair: _begin(pair[1])):
        name = who if who is not None else _likely(free_since, _begin(trace))
        if name is not None:
            found.append((name, trace))
            free_since[name] = _end(trace, is_named=who is not None)
    return found


def _likely(free_since: dict[str, float], begin: float) -> str | None:
    """Of those who wait for nothing, who has done so for the shortest time."""
    free = {who: since for who, since in free_since.items() if since <= begin}
    return max(free, key=lambda who: free[who]) if free else None


def _begin(trace: Trace) -> float:
    assert trace.time is not None
    return trace.time


def _end(trace: Trace, *, is_named: bool) -> float:
    if trace.until is not None:
        return trace.until
    return _begin(trace) if is_named else math.inf
