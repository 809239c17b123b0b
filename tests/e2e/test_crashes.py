"""Kill -9 of everyone at any phase: what was acknowledged is counted once, no ledger counts too little, and the study completes."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from e2e.crash_cases import COMMITTEE, DEVICE, MATRIX, Case
from e2e.crashing import Kill, Scene, check
from servers import Server, postgres, redis
from shoal.entropy import SeededEntropy
from shoal.privacy.ledger import SPENT
from shoal.privacy.records import State
from shoal.privacy.rounding import grains_up
from shoal.study.plan import make_plan

ALWAYS = ("anonml, workers and postgresql", "ddml by signatures, workers and redis", "sdq by sums", "pfds, sums")
"""One case of each protocol, which between them kill everyone; the others in `make soak` alone."""

SHORT, LONG = 16, 150
"""Kills in all, at least: in the short matrix, and in the long one."""

EACH = 20
"""Kills of each case in the long one."""


@pytest.fixture(scope="module")
def servers() -> Iterator[Mapping[str, Server]]:
    """Databases that may be killed, one of each kind for all cases."""
    with postgres() as one, redis() as another:
        yield {"postgres": one, "redis": another}


def play(case: Case, folder: Path, entropy: SeededEntropy, servers: Mapping[str, Server], n_kills: int) -> list[Kill]:
    """Studies of a case, one after another, until so many kills have fallen into them; who was killed."""
    kills: list[Kill] = []
    for i in range(n_kills):
        with ExitStack() as stack:
            needed = {kind: servers[kind] for kind in case.servers}
            scene = Scene(case, folder / str(i), entropy.spawn(i), needed, stack, n_before=len(kills))
            scene.begin()
            scene.run(min(case.kills, n_kills - len(kills)))
            print(*scene.kills, sep="\n")
            check(scene)
        kills += scene.kills
        if len(kills) == n_kills:
            break
    return kills


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.soak) for name in MATRIX])
def test_whoever_is_killed_at_any_moment(name: str, tmp_path: Path, entropy: SeededEntropy, servers: Mapping[str, Server]) -> None:
    case = MATRIX[name]
    kills = play(case, tmp_path, entropy, servers, case.kills)
    assert len(kills) == case.kills and {kill.victim for kill in kills} == set(case.victims)


def test_the_matrix_is_large_enough() -> None:
    short = [MATRIX[name] for name in ALWAYS]
    assert sum(case.kills for case in short) >= SHORT
    assert EACH * len(MATRIX) >= LONG
    assert {victim for case in short for victim in case.victims} == {"coordinator", "worker", "participant", "postgres", "redis"}
    for words in ('"anonml"', '"ddml"', '"token"', '"signed"', '"sdq"', '"sums"', '"mpc"', '"pfds"', '"paper"', '"secure-sum"'):
        assert any(words in case.text for case in MATRIX.values())


@pytest.mark.soak
@pytest.mark.parametrize("name", MATRIX)
def test_whoever_is_killed_at_length(name: str, tmp_path: Path, entropy: SeededEntropy, servers: Mapping[str, Server]) -> None:
    assert len(play(MATRIX[name], tmp_path, entropy, servers, EACH)) == EACH


ANSWERING = (
    (DEVICE, "enrolled:1 saved:1 reserved:1 writing:2 stored:1 writing:3 sending:1 delivered:2 writing:4 sent:1"),
    pytest.param(MATRIX["sdq by sums"], "enrolled:1 saved:2 reserved:1 stored:1 delivered:1 sent:1", marks=pytest.mark.soak),
    (MATRIX["pfds, trees"], "enrolled:1 reserved:2 stored:1 writing:2 saved:1 sending:1 delivered:2 sent:1"),
)


@pytest.mark.parametrize(("case", "steps"), ANSWERING, ids=("ddml", "sdq", "pfds"))
def test_a_participant_that_dies_at_each_step_of_an_answer(
    case: Case, steps: str, tmp_path: Path, entropy: SeededEntropy, stack: ExitStack
) -> None:
    """Also in the middle of a transaction, and between the mark that it is sending and the acknowledgement."""
    scene = Scene(case, tmp_path / "scene", entropy, {}, stack)
    scene.coordinator.start()
    mortal, *others = scene.gather()
    for other in others:
        other.start()
    for step in steps.split():
        mortal.start(f"die={step}")
        assert mortal.wait() == -signal.SIGKILL, (step, mortal.said)
        entries = scene.entries()[0]
        assert all(entry.digest is not None or entry.state is State.RESERVED for entry in entries)
        assert case is not DEVICE or scene.n_merged() <= sum(entry.state in SPENT for entry in entries)
    mortal.start()
    scene.run()
    check(scene)


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("anonml", "admitted:5 leased:2 folding:2 folded:1 accepted:1"),
        ("ddml by tokens", "admitted:3 used:2 merged:2 used:1 merged:1"),
        pytest.param("sdq by sums", "admitted:2 accepted:2 folded:2 folding:3 leased:2 accepted:1", marks=pytest.mark.soak),
        pytest.param("pfds, trees", "admitted:2 accepted:1 folding:2 folded:1 accepted:2", marks=pytest.mark.soak),
    ],
)
def test_a_coordinator_that_dies_at_each_step(name: str, steps: str, tmp_path: Path, entropy: SeededEntropy, stack: ExitStack) -> None:
    """Before and after what it was sent is durable, and before anyone is told."""
    scene = Scene(MATRIX[name], tmp_path / "scene", entropy, {}, stack)
    first, *others = steps.split()
    scene.coordinator.start(f"die={first}")
    for participant in scene.gather():
        participant.start()
    for step in (*others, None):
        scene.run(until=lambda: not scene.coordinator.is_alive)
        assert scene.coordinator.wait() == -signal.SIGKILL, scene.coordinator.said
        scene.coordinator.start(*([] if step is None else [f"die={step}"]))
    scene.run()
    check(scene)


def test_a_member_that_dies_while_a_committee_computes(
    tmp_path: Path, entropy: SeededEntropy, servers: Mapping[str, Server], stack: ExitStack
) -> None:
    """Its part of the computation is lost, and is not done again: the study ends and says why, and all have paid for what they sent."""
    scene = Scene(COMMITTEE, tmp_path / "scene", entropy, {"postgres": servers["postgres"]}, stack)
    scene.coordinator.start()
    for i, member in enumerate(scene.gather()):
        member.start(*(["die=computing:1"] if i == 0 else []))
    assert scene.participants[0].wait() == -signal.SIGKILL
    scene.participants[0].start()
    assert [member.wait() for member in scene.participants] == [1, 1, 1]
    # Others may still come and hear of it, for as long as a step lasts.
    scene.coordinator.clock.put(COMMITTEE.patience + 1)
    assert scene.ended() == "failed" and scene.coordinator.end(signal.SIGTERM) == 0
    hosted, _ = scene.stored()
    assert hosted.reason is not None and "the joint computation of participant-00000 broke off" in hosted.reason
    first, *_ = make_plan(scene.manifest.study, scene.manifest.digest).charges
    sent = [[(entry.release.question, entry.state, entry.cost) for entry in each] for each in scene.entries()]
    assert sent == [[("choice/0", State.SENT, grains_up(first.epsilon))]] * 3
