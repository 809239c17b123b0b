"""Any network, however bad, keeps the promises of the contract; and one from which nobody is gone for good delivers everything."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from hostile import hostile
from shoal.entropy import SeededEntropy
from shoal.protocols.base import MemoryLedger
from shoal.sim.network import Faults, run_network
from toy.checks import check, check_complete
from toy.protocol import Study, make

absence = st.tuples(st.integers(0, 20_000), st.none() | st.integers(20_001, 40_000))
faults = st.builds(
    Faults,
    loss=st.floats(0, 0.5),
    duplicate=st.floats(0, 1),
    min_delay=st.integers(0, 50),
    max_delay=st.integers(50, 5_000),
    crash=st.floats(0, 0.1),
    amnesia=st.floats(0, 1),
    downtime=st.integers(1, 5_000),
    retry=st.integers(50, 2_000),
    absences=st.dictionaries(st.sampled_from(["peer-0", "peer-1", "peer-2"]), absence, max_size=3),
)


@hostile(60)
@given(faults, st.integers(0, 2**32), st.integers(3, 5), st.integers(1, 3), st.integers(0, 60))
def test_promises_are_kept_on_any_network(faults: Faults, seed: int, n_peers: int, n_rounds: int, patience: int) -> None:
    study = Study(n_peers=n_peers, n_rounds=n_rounds, patience=timedelta(seconds=patience))
    aggregator, peers = make(study)
    ledgers = {name: MemoryLedger() for name in peers}
    outcome = run_network(aggregator, peers, SeededEntropy(seed), faults, ledgers=ledgers)
    check(study, outcome, ledgers)
    if all(returns is not None for _, returns in faults.absences.values()):
        check_complete(study, outcome, ledgers)
    again = {name: MemoryLedger() for name in peers}
    assert run_network(*make(study), SeededEntropy(seed), faults, ledgers=again).sent == outcome.sent
