"""The toy protocol keeps its invariants on any network.

If every peer returns, the network delivers everything.
"""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from shoal.entropy import SeededEntropy
from shoal.protocols.base import MemoryLedger
from shoal.simulation.network import Faults, run_network
from tests.support.hostile import hostile
from tests.support.toy.any_faults import any_faults
from tests.support.toy.checks import check, check_complete
from tests.support.toy.protocol import Study, make

faults = any_faults(most_lost=0.5)


@hostile(60)
@given(faults, st.integers(0, 2**32), st.integers(3, 5), st.integers(1, 3), st.integers(0, 60))
def test_toy_protocol_keeps_every_invariant_on_any_network(
    faults: Faults, seed: int, n_peers: int, n_rounds: int, timeout: int
) -> None:
    study = Study(n_peers=n_peers, n_rounds=n_rounds, phase_timeout=timedelta(seconds=timeout))
    aggregator, peers = make(study)
    ledgers = {name: MemoryLedger() for name in peers}
    outcome = run_network(aggregator, peers, SeededEntropy(seed), faults, ledgers=ledgers)
    check(study, outcome, ledgers)
    if all(returns is not None for _, returns in faults.absences.values()):
        check_complete(study, outcome, ledgers)
    again = {name: MemoryLedger() for name in peers}
    assert (
        run_network(*make(study), SeededEntropy(seed), faults, ledgers=again).sent == outcome.sent
    )
