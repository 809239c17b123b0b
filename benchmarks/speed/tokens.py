"""Anonymous packets: what a token costs to mint and to verify, and a packet on its way through a relay or Tor, by processor time.

``--only`` takes one of the parts: ``credentials``, ``ohttp``, ``packets`` or ``tor``. At the end stands what a million packets
cost, from what was measured in the same run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module

from benchmarks.measure import Measure

PARTS = ("credentials", "ohttp", "packets", "tor")
"""Each is a module beside this one, ``tokens_`` and its name, with a function ``measures()``."""
MILLION = 1_000_000


def measures(only: str = "") -> Iterator[Measure]:
    """All parts in their order, then what follows from them."""
    found: dict[str, float] = {}
    for part in PARTS:
        if only in part:
            for one in import_module(f"benchmarks.speed.tokens_{part}").measures():
                found[one.measure] = one.value
                yield one
    yield from of_a_million(found)


def of_a_million(found: Mapping[str, float]) -> Iterator[Measure]:
    """Processor minutes that a million packets take, for each thing that is done to them."""
    ms = {"mint": found.get("mint_ms"), "ohttp": found.get("ohttp_cpu_ms_per_packet"), "tor": found.get("tor_cpu_ms_per_packet")}
    if "verify_per_s_batched_strict" in found:
        ms["verify"] = 1000 / found["verify_per_s_batched_strict"]
    for what, cost in ms.items():
        if cost is not None:
            yield Measure("tokens", f"cpu_minutes_per_million_{what}", cost * MILLION / 60_000, "min", "lower")
