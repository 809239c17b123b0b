"""Processes killed with SIGKILL at any phase of a study.

Each acknowledged answer counts once, no ledger counts too little, and the study completes.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from shoal.entropy import SeededEntropy
from shoal.privacy.ledger.records import ReleaseState
from shoal.privacy.ledger.state import SPENT_STATES
from shoal.privacy.rounding import grains_up
from shoal.study.plan import make_plan
from tests.e2e.crash_cases import COMMITTEE, DEVICE, MATRIX, Case
from tests.e2e.crashing import Kill, Scene, check
from tests.support.servers import Server, postgres, redis

ALWAYS = (
    "anonml, workers and postgresql",
    "ddml by signatures, workers and redis",
    "sdq by sums",
    "pfds, sums",
)
"""One case of each protocol; together they kill all kinds. `make soak` runs the others."""

SHORT, LONG = 16, 150
"""Least number of kills in the short matrix and in the long one."""

EACH = 20
"""Kills of each case in the long matrix."""


@pytest.fixture(scope="module")
def servers() -> Iterator[Mapping[str, Server]]:
    """Start one database of each kind for all cases; tests may kill them."""
    with postgres() as one, redis() as another:
        yield {"postgres": one, "redis": another}


def run_with_kills(
    case: Case, folder: Path, entropy: SeededEntropy, servers: Mapping[str, Server], n_kills: int
) -> list[Kill]:
    """Run studies of a case one after another until there were n kills; return the kills."""
    kills: list[Kill] = []
    for i in range(n_kills):
        with ExitStack() as stack:
            needed = {kind: servers[kind] for kind in case.servers}
            scene = Scene(
                case, folder / str(i), entropy.spawn(i), needed, stack, n_before=len(kills)
            )
            scene.begin()
            scene.run(min(case.kills, n_kills - len(kills)))
            print(*scene.kills, sep="\n")
            check(scene)
        kills += scene.kills
        if len(kills) == n_kills:
            break
    return kills


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.soak) for name in MATRIX],
)
def test_study_completes_if_processes_are_killed(
    name: str, tmp_path: Path, entropy: SeededEntropy, servers: Mapping[str, Server]
) -> None:
    case = MATRIX[name]
    kills = run_with_kills(case, tmp_path, entropy, servers, case.kills)
    assert len(kills) == case.kills and {kill.victim for kill in kills} == set(case.victims)


def test_matrix_covers_all_protocols_and_victims() -> None:
    short = [MATRIX[name] for name in ALWAYS]
    assert sum(case.kills for case in short) >= SHORT
    assert EACH * len(MATRIX) >= LONG
    assert {victim for case in short for victim in case.victims} == {
        "coordinator",
        "worker",
        "participant",
        "postgres",
        "redis",
    }
    for words in (
        '"anonml"',
        '"ddml"',
        '"token"',
        '"signed"',
        '"sdq"',
        '"sums"',
        '"mpc"',
        '"pfds"',
        '"paper"',
        '"secure-sum"',
    ):
        assert any(words in case.text for case in MATRIX.values())


@pytest.mark.soak
@pytest.mark.parametrize("name", MATRIX)
def test_study_completes_if_processes_are_killed_often(
    name: str, tmp_path: Path, entropy: SeededEntropy, servers: Mapping[str, Server]
) -> None:
    assert len(run_with_kills(MATRIX[name], tmp_path, entropy, servers, EACH)) == EACH


ANSWERING = (
    (
        DEVICE,
        "enrolled:1, state saved:1, reserved:1, appending:2, stored:1, appending:3, sending:1, "
        "delivered:2, appending:4, sent:1",
    ),
    pytest.param(
        MATRIX["sdq by sums"],
        "enrolled:1, state saved:2, reserved:1, stored:1, delivered:1, sent:1",
        marks=pytest.mark.soak,
    ),
    (
        MATRIX["pfds, trees"],
        "enrolled:1, reserved:2, stored:1, appending:2, state saved:1, sending:1, delivered:2, "
        "sent:1",
    ),
)


@pytest.mark.parametrize(("case", "steps"), ANSWERING, ids=("ddml", "sdq", "pfds"))
def test_participant_killed_at_each_step_resumes(
    case: Case, steps: str, tmp_path: Path, entropy: SeededEntropy, stack: ExitStack
) -> None:
    """Steps include open transactions, and the time between "sending" and the acknowledgement."""
    scene = Scene(case, tmp_path / "scene", entropy, {}, stack)
    scene.coordinator.start()
    mortal, *others = scene.make_participants()
    for other in others:
        other.start()
    for step in steps.split(", "):
        mortal.start(f"die={step}")
        assert mortal.wait() == -signal.SIGKILL, (step, mortal.output)
        entries = scene.entries()[0]
        assert all(
            entry.digest is not None or entry.state is ReleaseState.RESERVED for entry in entries
        )
        assert case is not DEVICE or scene.count_merged() <= sum(
            entry.state in SPENT_STATES for entry in entries
        )
    mortal.start()
    scene.run()
    check(scene)


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("anonml", "admitted:5, leased:2, saving step:2, step saved:1, accepted:1"),
        ("ddml by tokens", "admitted:3, name used:2, merged:2, name used:1, merged:1"),
        pytest.param(
            "sdq by sums",
            "admitted:2, accepted:2, step saved:2, saving step:3, leased:2, accepted:1",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            "pfds, trees",
            "admitted:2, accepted:1, saving step:2, step saved:1, accepted:2",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_coordinator_killed_at_each_step_resumes(
    name: str, steps: str, tmp_path: Path, entropy: SeededEntropy, stack: ExitStack
) -> None:
    """Before and after a message is durable, and before the sender is informed."""
    scene = Scene(MATRIX[name], tmp_path / "scene", entropy, {}, stack)
    first, *others = steps.split(", ")
    scene.coordinator.start(f"die={first}")
    for participant in scene.make_participants():
        participant.start()
    for step in (*others, None):
        scene.run(until=lambda: not scene.coordinator.is_alive)
        assert scene.coordinator.wait() == -signal.SIGKILL, scene.coordinator.output
        scene.coordinator.start(*([] if step is None else [f"die={step}"]))
    scene.run()
    check(scene)


def test_study_fails_if_committee_member_is_killed(
    tmp_path: Path, entropy: SeededEntropy, servers: Mapping[str, Server], stack: ExitStack
) -> None:
    """A lost part of a joint computation is not repeated.

    The study fails with a reason, and all members have spent the price of what they sent.
    """
    scene = Scene(COMMITTEE, tmp_path / "scene", entropy, {"postgres": servers["postgres"]}, stack)
    scene.coordinator.start()
    for i, member in enumerate(scene.make_participants()):
        member.start(*(["die=computing:1"] if i == 0 else []))
    assert scene.participants[0].wait() == -signal.SIGKILL
    scene.participants[0].start()
    assert [member.wait() for member in scene.participants] == [1, 1, 1]
    # The study stays open until the phase times out, so that other members learn of the end.
    scene.coordinator.clock.put(COMMITTEE.patience + 1)
    assert scene.wait_for_end() == "failed" and scene.coordinator.end(signal.SIGTERM) == 0
    hosted, _ = scene.load_record()
    assert (
        hosted.reason is not None
        and "the joint computation of participant-00000 failed" in hosted.reason
    )
    first, *_ = make_plan(scene.manifest.study, scene.manifest.digest).charges
    sent = [
        [(entry.release.question, entry.state, entry.cost) for entry in each]
        for each in scene.entries()
    ]
    assert sent == [[("choice/0", ReleaseState.SENT, grains_up(first.epsilon))]] * 3
