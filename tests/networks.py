"""Drivers of a protocol for contract tests: the loop and simulated networks, from good to hardly usable."""

from __future__ import annotations

from collections.abc import Callable

from shoal.protocols.base import Outcome
from shoal.sim.network import Faults, run_network

Run = Callable[..., Outcome]

LOSSY = Faults(loss=0.4, duplicate=0.5, min_delay=1, max_delay=900)
HEAVY = Faults(loss=0.3, duplicate=0.3, min_delay=5, max_delay=2_000, crash=0.05, downtime=3_000, retry=400)


def over(faults: Faults) -> Run:
    """A driver that is a network with these faults."""
    return lambda aggregator, peers, entropy, **options: run_network(aggregator, peers, entropy, faults, **options)
