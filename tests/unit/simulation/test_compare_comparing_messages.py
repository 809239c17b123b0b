"""Message volumes equal those of real machines, and are unknown if too expensive."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.cli.hello.population import make_people
from shoal.entropy import SeededEntropy
from shoal.messages.codec import decode
from shoal.protocols.anonml.analysis import packet_bytes
from shoal.protocols.base import AGGREGATOR, run_local
from shoal.protocols.pfds.messages import MESSAGES, HolderTables
from shoal.protocols.pfds.params import PFDSParams, PFDSRows
from shoal.protocols.sdq.params import SDQParams
from shoal.simulation import machines as pfds_machines
from shoal.simulation import sdq
from shoal.simulation.alternatives import ALTERNATIVES, derive_study
from shoal.simulation.compare import measure_message_volume
from shoal.simulation.machines import MAX_MEMBERS
from shoal.simulation.protocol import MessageVolume
from shoal.simulation.registry import make_simulation_params
from shoal.simulation.run import RunTask, Split
from shoal.study.plan import Plan, make_plan
from shoal.study.validation import parse_content, parse_study

N = 600
PEOPLE = make_people(N, SeededEntropy(3))
SPLIT = Split(PEOPLE.columns, PEOPLE.labels, PEOPLE.columns, PEOPLE.labels)
STUDY = parse_study(
    {
        "title": "Sleep",
        "purpose": "Who sleeps badly?",
        "contact": "a@example.org",
        "protocol": "anonml",
        "label": {"name": "sleeps_badly", "values": ["no", "yes"]},
        "feature": [
            {"name": "coffee", "range": [0, 8], "missing": False},
            {"name": "shifts", "values": ["no", "yes"], "missing": False},
            {"name": "children", "values": ["none", "older", "small"], "missing": False},
        ],
        "privacy": {"epsilon": 1.0},
        "participation": {"minimum": 100, "size": N},
    }
)
ROWS = replace(
    SPLIT, train_columns={name: PEOPLE.columns[name] for name in ("coffee", "shifts", "children")}
)
BY_NAME = {way.name: way for way in ALTERNATIVES}


def planned(name: str, n_holders: int = 4, epsilon: float = 4.0) -> tuple[Plan, RunTask]:
    study = derive_study(BY_NAME[name], STUDY, epsilon, n_holders)
    return make_plan(study), RunTask(make_simulation_params(study), 1)


def test_volume_of_a_person_counts_packets_and_of_a_device_both_messages() -> None:
    plan, task = planned("AnonML paper, local")
    assert plan.script is not None
    n = len(plan.script.prices)
    assert n > 1 and measure_message_volume(plan, task, ROWS, joint=False) == MessageVolume(
        n * packet_bytes(plan.script), n
    )
    plan, task = planned("DDML plus, local")
    assert plan.params is not None
    one = measure_message_volume(plan, task, ROWS, joint=False)
    assert one is not None and one.messages == 2 and one.bytes > 4 * plan.params.n_weights
    thrice = make_plan(
        parse_content({**plan.study.to_content(), "privacy": {"epsilon": 1.0, "n_updates": 3}})
    )
    assert measure_message_volume(thrice, task, ROWS, joint=False) == MessageVolume(
        3 * one.bytes, 6
    )


@pytest.mark.parametrize(
    "name",
    [
        "SDQ plus, secure sums, naive Bayes", "SDQ paper, secure sums", "SDQ paper, local (SuLQ)",
        "PFDS plus, local", "PFDS plus, secure sums", "PFDS paper, local",
    ],
)  # fmt: skip
def test_volume_of_holders_is_that_of_their_machines(name: str) -> None:
    plan, task = planned(name)
    few = measure_message_volume(plan, task, ROWS, joint=False)
    assert few is not None and few.messages >= 1 and few.bytes > 100
    assert few == measure_message_volume(plan, task, ROWS, joint=False), (
        "the same task sends the same"
    )
    if plan.study.trust == "secure-sum":
        more = measure_message_volume(*planned(name, 7), ROWS, joint=False)
        # Each has keys with every other.
        assert more is not None and more.bytes > few.bytes


def test_volume_of_a_separate_table_is_that_of_a_whole_run() -> None:
    plan, task = planned("PFDS plus, local")
    params = task.params
    assert isinstance(params, PFDSParams)
    rows = PFDSRows.from_columns(params, ROWS.train_columns, ROWS.train_labels)
    parts = [rows.take(np.arange(N) % 4 == i) for i in range(4)]
    outcome = run_local(*pfds_machines.make_pfds_machines(params, parts), SeededEntropy(1))
    sent = [one.payload for one in outcome.sent if one.sender != AGGREGATOR]
    study = pfds_machines.make_pfds_machines(params, parts)[0].study
    assert all(isinstance(decode(payload, MESSAGES, study), HolderTables) for payload in sent)
    assert measure_message_volume(plan, task, ROWS, joint=False) == MessageVolume(
        sum(map(len, sent)) / 4, len(sent) / 4
    )


def test_volume_ignores_rows_of_a_person_above_the_limit() -> None:
    study = parse_content(
        {
            **derive_study(BY_NAME["PFDS paper, local"], STUDY, 4.0, 4).to_content(),
            "privacy": {"epsilon": 4.0},
        }
    )
    content = study.to_content() | {
        "data": {"person": "who", "max_rows_per_person": 1},
        "privacy": {"epsilon": 4.0, "unit": "person"},
    }
    plan = make_plan(parse_content(content))
    task = RunTask(make_simulation_params(plan.study), 1)
    alone = replace(ROWS, people=np.zeros(N, np.int64), holders=np.arange(N) % 4, n_holders=4)
    apart = replace(alone, people=np.arange(N))
    few, many = (measure_message_volume(plan, task, rows, joint=False) for rows in (alone, apart))
    # The trees of a single row each release next to no made-up rows.
    assert few is not None and many is not None and few.bytes < many.bytes


def test_volume_of_a_committee_is_known_only_after_a_real_computation() -> None:
    plan, task = planned("SDQ plus, secure sums, tree", n_holders=3)
    assert isinstance(task.params, SDQParams) and task.params.choice == "mpc"
    assert measure_message_volume(plan, task, ROWS, joint=False) is None
    whole = measure_message_volume(plan, task, ROWS, joint=True)
    assert whole is not None
    # In the clear, which sends nothing, most of it is not there.
    machines = sdq.make_machines(task, ROWS)
    outcome = run_local(*machines, SeededEntropy(1))
    ideal = [len(sent.payload) for sent in outcome.sent if sent.sender != AGGREGATOR]
    assert whole.bytes > 2 * sum(ideal) / 3 and whole.messages > 2 * len(ideal) / 3


def test_volume_of_two_selected_databases_includes_the_joint_computation() -> None:
    paper = derive_study(BY_NAME["SDQ paper, secure sums"], STUDY, 4.0, 3)
    content = paper.to_content()
    content["sdq"] = {**content["sdq"], "noise": "two-selected"}
    study = parse_content(content)
    assert (
        measure_message_volume(
            make_plan(study), RunTask(make_simulation_params(study), 1), ROWS, joint=False
        )
        is None
    )


def test_volume_is_unknown_for_too_many_members() -> None:
    for name, trust in (("PFDS plus, secure sums", "secure-sum"), ("PFDS plus, local", "local")):
        assert (
            measure_message_volume(*planned(name, MAX_MEMBERS[trust] + 1), ROWS, joint=False)
            is None
        )
    assert (
        measure_message_volume(
            *planned("PFDS plus, local", MAX_MEMBERS["secure-sum"] + 1), ROWS, joint=False
        )
        is not None
    )


def test_volume_is_unknown_if_the_machines_have_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, task = planned("PFDS plus, secure sums")
    honest = pfds_machines.make_pfds_machines

    def one_is_away(*args: Any) -> tuple[Any, Any]:
        aggregator, peers = honest(*args)
        return aggregator, {name: peer for name, peer in peers.items() if name != "peer-0"}

    # A sum of this study waits for all.
    monkeypatch.setattr(pfds_machines, "make_pfds_machines", one_is_away)
    assert measure_message_volume(plan, task, ROWS, joint=False) is None
