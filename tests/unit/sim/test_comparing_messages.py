"""What one participant sends is what the real machines send, and not known where that would take too long."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.messages.codec import decode
from shoal.protocols.anonml.analysis import packet_bytes
from shoal.protocols.base import AGGREGATOR, run_local
from shoal.protocols.pfds.messages import MESSAGES, Tables
from shoal.protocols.pfds.params import Params as PFDSParams
from shoal.protocols.pfds.params import Rows
from shoal.protocols.sdq.params import Params as SDQParams
from shoal.sim import comparing_messages, pfds_machines
from shoal.sim.comparing_messages import MOST_MEMBERS, Sent, sent_by_one
from shoal.sim.comparing_studies import WAYS, derive
from shoal.sim.people import make_people
from shoal.sim.protocols import params_for
from shoal.sim.runs import Split, Task
from shoal.study.plan import Plan, make_plan
from shoal.study.spec import Study

N = 600
PEOPLE = make_people(N, SeededEntropy(3))
SPLIT = Split(PEOPLE.columns, PEOPLE.labels, PEOPLE.columns, PEOPLE.labels)
STUDY = Study.model_validate(
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
ROWS = replace(SPLIT, asked={name: PEOPLE.columns[name] for name in ("coffee", "shifts", "children")})
BY_NAME = {way.name: way for way in WAYS}


def planned(name: str, n_holders: int = 4, epsilon: float = 4.0) -> tuple[Plan, Task]:
    study = derive(BY_NAME[name], STUDY, epsilon, n_holders)
    return make_plan(study), Task(params_for(study), 1)


def test_a_person_sends_packets_and_a_device_asks_and_answers() -> None:
    plan, task = planned("AnonML paper, local")
    assert plan.script is not None
    n = len(plan.script.prices)
    assert n > 1 and sent_by_one(plan, task, ROWS, joint=False) == Sent(n * packet_bytes(plan.script), n)
    plan, task = planned("DDML plus, local")
    assert plan.params is not None
    one = sent_by_one(plan, task, ROWS, joint=False)
    assert one is not None and one.messages == 2 and one.bytes > 4 * plan.params.n_weights
    thrice = make_plan(Study.from_content({**plan.study.content(), "privacy": {"epsilon": 1.0, "n_updates": 3}}))
    assert sent_by_one(thrice, task, ROWS, joint=False) == Sent(3 * one.bytes, 6)


@pytest.mark.parametrize(
    "name",
    [
        "SDQ plus, secure sums, naive Bayes", "SDQ paper, secure sums", "SDQ paper, local (SuLQ)",
        "PFDS plus, local", "PFDS plus, secure sums", "PFDS paper, local",
    ],
)  # fmt: skip
def test_databases_and_organisations_send_what_their_machines_send(name: str) -> None:
    plan, task = planned(name)
    few = sent_by_one(plan, task, ROWS, joint=False)
    assert few is not None and few.messages >= 1 and few.bytes > 100
    assert few == sent_by_one(plan, task, ROWS, joint=False), "the same task sends the same"
    if plan.study.trust == "secure-sum":
        more = sent_by_one(*planned(name, 7), ROWS, joint=False)
        # Each has keys with every other.
        assert more is not None and more.bytes > few.bytes


def test_a_table_that_is_answered_by_itself_is_the_one_that_a_whole_run_sends() -> None:
    plan, task = planned("PFDS plus, local")
    params = task.params
    assert isinstance(params, PFDSParams)
    rows = Rows.of(params, ROWS.asked, ROWS.labels)
    parts = [rows.take(np.arange(N) % 4 == i) for i in range(4)]
    outcome = run_local(*pfds_machines.machines(params, parts), SeededEntropy(1))
    sent = [one.payload for one in outcome.sent if one.sender != AGGREGATOR]
    study = pfds_machines.machines(params, parts)[0].study
    assert all(isinstance(decode(payload, MESSAGES, study), Tables) for payload in sent)
    assert sent_by_one(plan, task, ROWS, joint=False) == Sent(sum(map(len, sent)) / 4, len(sent) / 4)


def test_rows_that_a_person_has_beyond_what_is_allowed_are_not_used() -> None:
    study = Study.from_content({**derive(BY_NAME["PFDS paper, local"], STUDY, 4.0, 4).content(), "privacy": {"epsilon": 4.0}})
    content = study.content() | {"data": {"person": "who", "max_rows_per_person": 1}, "privacy": {"epsilon": 4.0, "unit": "person"}}
    plan = make_plan(Study.from_content(content))
    task = Task(params_for(plan.study), 1)
    alone = replace(ROWS, people=np.zeros(N, np.int64), holders=np.arange(N) % 4, n_holders=4)
    apart = replace(alone, people=np.arange(N))
    few, many = (sent_by_one(plan, task, rows, joint=False) for rows in (alone, apart))
    # The trees of a single row each release next to no made-up rows.
    assert few is not None and many is not None and few.bytes < many.bytes


def test_what_a_committee_sends_is_known_only_where_it_has_really_computed() -> None:
    plan, task = planned("SDQ plus, secure sums, tree", n_holders=3)
    assert isinstance(task.params, SDQParams) and task.params.choice == "mpc"
    assert sent_by_one(plan, task, ROWS, joint=False) is None
    whole = sent_by_one(plan, task, ROWS, joint=True)
    assert whole is not None
    # In the clear, which sends nothing, most of it is not there.
    machines = comparing_messages._machines(task.params, task, ROWS)
    outcome = run_local(*machines, SeededEntropy(1))
    ideal = [len(sent.payload) for sent in outcome.sent if sent.sender != AGGREGATOR]
    assert whole.bytes > 2 * sum(ideal) / 3 and whole.messages > 2 * len(ideal) / 3


def test_two_that_are_selected_jointly_are_a_computation_too() -> None:
    paper = derive(BY_NAME["SDQ paper, secure sums"], STUDY, 4.0, 3)
    content = paper.content()
    content["sdq"] = {**content["sdq"], "noise": "two-selected"}
    study = Study.from_content(content)
    assert sent_by_one(make_plan(study), Task(params_for(study), 1), ROWS, joint=False) is None


def test_more_members_than_can_be_tried_are_not_tried() -> None:
    for name, trust in (("PFDS plus, secure sums", "secure-sum"), ("PFDS plus, local", "local")):
        assert sent_by_one(*planned(name, MOST_MEMBERS[trust] + 1), ROWS, joint=False) is None
    assert sent_by_one(*planned("PFDS plus, local", MOST_MEMBERS["secure-sum"] + 1), ROWS, joint=False) is not None


def test_machines_that_do_not_come_to_a_result_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, task = planned("PFDS plus, secure sums")
    honest = pfds_machines.machines

    def one_is_away(*args: Any) -> tuple[Any, Any]:
        aggregator, peers = honest(*args)
        return aggregator, {name: peer for name, peer in peers.items() if name != "peer-0"}

    # A sum of this study waits for all.
    monkeypatch.setattr(pfds_machines, "machines", one_is_away)
    assert sent_by_one(plan, task, ROWS, joint=False) is None
