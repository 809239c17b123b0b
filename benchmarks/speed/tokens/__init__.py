"""Anonymous packets: cost of tokens, and of packets through a relay or Tor.

Costs are processor time. ``--only`` takes one of the parts: ``credentials``, ``ohttp``, ``packets``
or ``tor``. The last figures are the cost of a million packets, from the measures of the same run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module

from benchmarks.measure import Measure

PARTS = ("credentials", "ohttp", "packets", "tor")
"""Modules of this package, each with a function ``measures()``."""
MILLION = 1_000_000


def measures(only: str = "") -> Iterator[Measure]:
    """Yield all parts in their order, then the cost of a million packets."""
    found: dict[str, float] = {}
    for part in PARTS:
        if only in part:
            for one in import_module(f"benchmarks.speed.tokens.{part}").measures():
                found[one.measure] = one.value
                yield one
    yield from of_a_million(found)


def of_a_million(found: Mapping[str, float]) -> Iterator[Measure]:
    """Yield processor minutes of a million packets, for each kind of work."""
    ms = {
        "mint": found.get("mint_ms"),
        "ohttp": found.get("ohttp_cpu_ms_per_packet"),
        "tor": found.get("tor_cpu_ms_per_packet"),
    }
    if "verify_per_s_batched_strict" in found:
        ms["verify"] = 1000 / found["verify_per_s_batched_strict"]
    for what, cost in ms.items():
        if cost is not None:
            yield Measure(
                "tokens", f"cpu_minutes_per_million_{what}", cost * MILLION / 60_000, "min", "lower"
            )
