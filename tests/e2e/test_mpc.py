"""Joint computations with real child processes: same results as in a simulation, clean ends."""

from __future__ import annotations

import os
import signal

import pytest

from shoal.entropy import SeededEntropy
from shoal.mpyc.runner import MPyCWorkers
from shoal.protocols.base import Feed, run_local
from shoal.simulation.network import Faults, run_network
from tests.support.toy import joint

VALUES = (3, -5, 1 << 40, 7, 1 << 40, -(1 << 40))


@pytest.mark.parametrize("n_peers", [3, 5, 7])
def test_argmax_and_select_between_processes(n_peers: int) -> None:
    for program, values in (("argmax", VALUES), ("select", ())):
        with MPyCWorkers() as children:
            outcome = run_local(
                *joint.make(joint.Study(program, n_peers), values),
                SeededEntropy(n_peers),
                computer=children,
            )
            assert children.pids == {}
        assert not (outcome.rejected or outcome.failed or outcome.aborted)
        results = [outcome.results[f"peer-{i}"] for i in range(n_peers)]
        if program == "argmax":
            assert results == [(2,)] * n_peers
        else:
            assert sorted(results) == [(0,)] * (n_peers - 2) + [(1,), (2,)]


def test_computation_survives_lost_repeated_reordered_frames() -> None:
    faults = Faults(loss=0.2, duplicate=0.3, min_delay=1, max_delay=900)
    with MPyCWorkers() as children:
        outcome = run_network(
            *joint.make(joint.Study("argmax", 3), VALUES),
            SeededEntropy(4),
            faults,
            computer=children,
        )
    assert outcome.results == {f"peer-{i}": (2,) for i in range(3)}
    assert not (outcome.rejected or outcome.failed or outcome.aborted)


class Mortal(MPyCWorkers):
    """Workers of which one is killed when it is fed for the tenth time."""

    n_fed = 0
    seen: tuple[int, ...] = ()

    def feed(self, owner: str, given: Feed) -> None:
        super().feed(owner, given)
        self.n_fed += owner == "peer-1"
        if self.n_fed == 10 and owner == "peer-1":
            self.seen = tuple(self.pids.values())
            os.kill(self.pids[owner, given.task], signal.SIGKILL)


@pytest.mark.parametrize("drive", [run_local, run_network])
def test_killed_worker_ends_computation_without_leftovers(drive) -> None:
    with Mortal() as children:
        outcome = drive(
            *joint.make(joint.Study("argmax", 3), VALUES), SeededEntropy(1), computer=children
        )
    assert {name: error.code for name, error in outcome.aborted.items()} == {"peer-1": "JOINT-001"}
    assert outcome.results == {}, (
        "the others wait for what never comes, and their protocol's deadline would end them"
    )
    assert not outcome.failed
    assert len(children.seen) == 3
    for pid in children.seen:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
