"""The computer of simulations: it gives each party what the program says, once all have asked for the same."""

from __future__ import annotations

from itertools import product

import pytest

from shoal.entropy import SeededEntropy, SystemEntropy
from shoal.protocols.base import Compute, Computed, Feed, IdealComputer, run_local
from shoal.protocols.effects import Program
from shoal.protocols.joint import dealing
from shoal.protocols.joint.computing import interrupted, largest
from shoal.sim.network import run_network
from toy import joint

ENTROPY = SeededEntropy("computing")


def asked(me: int, program: Program = "select", n_parties: int = 3, inputs: tuple[int, ...] = ()) -> Compute:
    return Compute("joint/1", program, me, n_parties, inputs)


def test_nobody_learns_anything_before_all_have_asked() -> None:
    computer = IdealComputer(ENTROPY)
    for me in (0, 2):
        computer.begin(f"peer-{me}", asked(me))
        assert computer.collect() == []
    computer.begin("peer-1", asked(1))
    told = dict(computer.collect())
    assert sorted(progress.result for progress in told.values() if isinstance(progress, Computed)) == [(0,), (1,), (2,)]
    assert computer.collect() == []


def test_the_largest_sum_is_found_and_the_first_of_several() -> None:
    for values in product((-3, 0, 2), repeat=4):
        for n_parties in (3, 4):
            inputs = dict(enumerate(dealing.split(values, n_parties, ENTROPY)))
            assert largest(inputs, ENTROPY) == dict.fromkeys(range(n_parties), values.index(max(values)))


def test_parties_that_ask_for_different_things_never_meet() -> None:
    for other in (asked(2, "argmax"), asked(2, n_parties=4), asked(2, inputs=(5,)), Compute("joint/2", "select", 2, 3)):
        computer = IdealComputer(ENTROPY)
        for me, compute in enumerate((asked(0), asked(1), other)):
            computer.begin(f"peer-{me}", compute)
        assert computer.collect() == []


def test_an_owner_that_has_gone_is_forgotten() -> None:
    computer = IdealComputer(ENTROPY)
    for me in (0, 1):
        computer.begin(f"peer-{me}", asked(me))
    computer.end("peer-1")
    computer.begin("peer-2", asked(2))
    assert computer.collect() == []
    computer.begin("peer-1", asked(1))
    computer.end("peer-0")
    assert {name for name, _ in computer.collect()} == {"peer-1", "peer-2"}


def test_what_nobody_emitted_is_of_no_use() -> None:
    computer = IdealComputer(ENTROPY)
    computer.begin("peer-0", asked(0))
    computer.feed("peer-0", Feed("joint/1", 1, b"\x00"))
    assert computer.collect() == []


def test_a_seeded_simulation_is_repeated_whatever_else_was_drawn() -> None:
    def selected(entropy: SeededEntropy | SystemEntropy) -> list[object]:
        entropy.word()
        computer = IdealComputer(entropy)
        for me in range(9):
            computer.begin(f"peer-{me}", asked(me, n_parties=9))
        return [progress for _, progress in computer.collect()]

    assert selected(ENTROPY) == selected(ENTROPY)
    drawn = selected(SystemEntropy())
    assert sum(Computed("joint/1", (0,)) == progress for progress in drawn) == 7


@pytest.mark.parametrize("drive", [run_local, run_network])
def test_both_drivers_compute(drive) -> None:
    outcome = drive(*joint.make(joint.Study("argmax", 5), [4, 9, -2, 9]), ENTROPY)
    assert outcome.results == {f"peer-{i}": (1,) for i in range(5)}
    assert not any(sent.sender.startswith("peer") and b"joint.frame" in sent.payload for sent in outcome.sent)


def test_what_went_down_is_not_resumed() -> None:
    broken = interrupted("joint/3")
    assert (broken.task, broken.error.code) == ("joint/3", "JOINT-001")
