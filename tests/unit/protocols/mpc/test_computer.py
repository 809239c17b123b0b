"""The ideal computation returns each party's result when all have asked for the same."""

from __future__ import annotations

from itertools import product

import pytest

from shoal.entropy import SeededEntropy, SystemEntropy
from shoal.protocols.base import Compute, Computed, Feed, IdealComputation, run_local
from shoal.protocols.effects import Program
from shoal.protocols.mpc import shares
from shoal.protocols.mpc.computer import compute_argmax, make_interruption
from shoal.simulation.network import run_network
from tests.support.toy import joint

ENTROPY = SeededEntropy("computing")


def asked(
    me: int, program: Program = "select", n_parties: int = 3, inputs: tuple[int, ...] = ()
) -> Compute:
    return Compute("joint/1", program, me, n_parties, inputs)


def test_ideal_computation_waits_for_all_parties() -> None:
    computer = IdealComputation(ENTROPY)
    for me in (0, 2):
        computer.begin(f"peer-{me}", asked(me))
        assert computer.collect() == []
    computer.begin("peer-1", asked(1))
    told = dict(computer.collect())
    assert sorted(
        progress.result for progress in told.values() if isinstance(progress, Computed)
    ) == [(0,), (1,), (2,)]
    assert computer.collect() == []


def test_compute_argmax_returns_first_largest_sum() -> None:
    for values in product((-3, 0, 2), repeat=4):
        for n_parties in (3, 4):
            inputs = dict(enumerate(shares.split(values, n_parties, ENTROPY)))
            assert compute_argmax(inputs, ENTROPY) == dict.fromkeys(
                range(n_parties), values.index(max(values))
            )


def test_ideal_computation_separates_different_requests() -> None:
    for other in (
        asked(2, "argmax"),
        asked(2, n_parties=4),
        asked(2, inputs=(5,)),
        Compute("joint/2", "select", 2, 3),
    ):
        computer = IdealComputation(ENTROPY)
        for me, compute in enumerate((asked(0), asked(1), other)):
            computer.begin(f"peer-{me}", compute)
        assert computer.collect() == []


def test_ideal_computation_forgets_ended_owner() -> None:
    computer = IdealComputation(ENTROPY)
    for me in (0, 1):
        computer.begin(f"peer-{me}", asked(me))
    computer.end("peer-1")
    computer.begin("peer-2", asked(2))
    assert computer.collect() == []
    computer.begin("peer-1", asked(1))
    computer.end("peer-0")
    assert {name for name, _ in computer.collect()} == {"peer-1", "peer-2"}


def test_ideal_computation_ignores_fed_payload() -> None:
    computer = IdealComputation(ENTROPY)
    computer.begin("peer-0", asked(0))
    computer.feed("peer-0", Feed("joint/1", 1, b"\x00"))
    assert computer.collect() == []


def test_ideal_computation_repeats_with_seed() -> None:
    def selected(entropy: SeededEntropy | SystemEntropy) -> list[object]:
        entropy.word()
        computer = IdealComputation(entropy)
        for me in range(9):
            computer.begin(f"peer-{me}", asked(me, n_parties=9))
        return [progress for _, progress in computer.collect()]

    assert selected(ENTROPY) == selected(ENTROPY)
    drawn = selected(SystemEntropy())
    assert sum(Computed("joint/1", (0,)) == progress for progress in drawn) == 7


@pytest.mark.parametrize("drive", [run_local, run_network])
def test_drivers_run_ideal_computation(drive) -> None:
    outcome = drive(*joint.make(joint.Study("argmax", 5), [4, 9, -2, 9]), ENTROPY)
    assert outcome.results == {f"peer-{i}": (1,) for i in range(5)}
    assert not any(
        sent.sender.startswith("peer") and b"joint.frame" in sent.payload for sent in outcome.sent
    )


def test_make_interruption_returns_broken() -> None:
    broken = make_interruption("joint/3")
    assert (broken.task, broken.error.code) == ("joint/3", "JOINT-001")
