"""Audit of SDQ: a miner that follows the unit, whole runs, and dishonest databases."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.audit import sdq
from shoal.audit.sdq import (
    SDQAuditColluder,
    SDQAuditHarness,
    SDQScriptedAggregator,
    make_hostile_states,
    make_neighbours,
    make_other_table,
    observe_study,
)
from shoal.audit.study import (
    choose_samples,
    compute_claim,
    evaluate_observations,
    make_audit_plan,
)
from shoal.mechanisms.distributed_laplace import DistributedNoisyMax
from shoal.privacy.accountant import compose_sequential
from shoal.privacy.rounding import grains_up
from shoal.protocols.sdq.noise import make_mechanism
from shoal.protocols.sdq.peer import SDQPeer
from shoal.study.sdq import build_params, build_script
from tests.unit.audit import small_studies
from tests.unit.audit.sdq_studies import (
    STUDIES,
    Careless,
    Cheap,
    ForEveryone,
    Forgetful,
    HalfNoise,
    Shy,
    SureOfItself,
    Unlimited,
    make_study,
)

DIGEST = bytes(range(32))
NAMES = list(STUDIES)


@pytest.fixture(autouse=True)
def _one_run(monkeypatch):
    """Run one study with each of the tables in full: enough to see the ledgers."""
    monkeypatch.setattr(sdq, "RUNS", 1)


def stage_of(name, make_peer=SDQPeer):
    return SDQAuditHarness(DIGEST, build_script(STUDIES[name]), make_peer)


def audit(study, samples, entropy, peer=SDQPeer, confidence=0.9):
    """Audit a study with fewer samples than a user may ask for."""
    whole = compose_sequential(make_audit_plan(study).charges)
    return evaluate_observations(
        observe_study(study, compute_claim(study), whole, samples, entropy, peer),
        confidence,
        grains_up(whole.epsilon),
    )


def with_epsilon(study, epsilon):
    return study.model_copy(
        update={"privacy": study.privacy.model_copy(update={"epsilon": epsilon})}
    )


@pytest.mark.parametrize("name", NAMES)
def test_unit_pays_the_whole_claim_with_the_hostile_miner(name):
    """In each round it changes counts by the sensitivity; a choice changes all scores but one."""
    stage, spent = stage_of(name), []
    for watched in stage.observed_parts:
        mechanism, moved = (
            make_mechanism(stage.params, watched.part, watched.asked.is_choice),
            watched.sums[1] - watched.sums[0],
        )
        if isinstance(mechanism, DistributedNoisyMax):
            assert sorted(moved.tolist()) == [0] + [stage.params.max_rows] * (moved.size - 1)
            spent.append(float(mechanism.rate) * moved.max())
        else:
            spent.append(float(mechanism.rate) * np.abs(moved).sum())
    assert {watched.number for watched in stage.observed_parts} == set(range(len(stage.rounds)))
    assert sum(spent) == pytest.approx(compute_claim(STUDIES[name]).epsilon, abs=1e-9)


@pytest.mark.parametrize("name", ["paper", "sums", "plus"])
def test_miner_reads_the_counts_that_the_unit_changes(name):
    stage = stage_of(name)
    for number, asked in enumerate(stage.rounds):
        counts = [
            np.concatenate([part.count(table) for part in asked.parts]) for table in stage._tables
        ]
        read = [
            watched.read_answer(np.arange(asked.size))
            for watched in stage.observed_parts
            if watched.number == number
        ]
        if not asked.is_choice:
            assert (
                np.concatenate(read, axis=1)[0].tolist()
                == np.flatnonzero(counts[0] != counts[1]).tolist()
            )


def test_hostile_states_follow_the_priced_path():
    for name in NAMES:
        script = build_script(STUDIES[name])
        questions = [
            asked.question
            for course in make_hostile_states(script)
            if (asked := script.make_round(course))
        ]
        assert (
            len(questions)
            == len(set(questions))
            == sum(count for _, count in script.costliest_questions)
        )


@pytest.mark.parametrize("max_rows", [1, 3])
def test_no_noise_makes_the_first_choice_reveal_the_unit(max_rows):
    stage = stage_of("person" if max_rows > 1 else "plus")
    first = stage.observed_parts[0]
    without, with_unit = np.argmax(first.sums, axis=1)
    assert first.asked.is_choice and without != with_unit
    assert first.sums[0][without] - np.delete(first.sums[0], without).max() == max_rows


@pytest.mark.parametrize("path", [(), (1,), (1, 2), (2, 0, 1)])
def test_second_class_outnumbers_the_unit_only_along_the_path(path):
    params = build_params(STUDIES["person"])
    without, with_unit = make_neighbours(params, path)
    assert len(with_unit) - len(without) == params.max_rows
    assert not with_unit.cells[len(without) :].any() and not with_unit.labels[len(without) :].any()
    for chosen in range(8):
        inside = (without.cells[:, [j for j in range(3) if chosen >> j & 1]] == 0).all(axis=1)
        lead = int((2 * without.labels[inside] - 1).sum())
        is_beginning = any(chosen == sum(1 << j for j in path[:i]) for i in range(1, len(path) + 1))
        assert lead == params.max_rows * is_beginning
    assert make_other_table(params).cells.all()


@pytest.mark.untraced
@pytest.mark.parametrize("name", NAMES)
def test_study_run_in_full_charges_each_ledger_the_price(name, entropy):
    stage = stage_of(name)
    run = stage.run(1, entropy)
    assert set(run.charges) == {
        grains_up(compose_sequential(make_audit_plan(STUDIES[name]).charges).epsilon)
    }
    assert run.packets == len(stage.rounds)
    params = stage.params
    assert len(run.charges) == (
        5
        if name == "two selected"
        else 1
        if name == "local"
        else params.minimum - params.max_colluders
    )


@pytest.mark.untraced
@pytest.mark.parametrize("name", ["plus", "three missing", "bayes", "two selected", "local"])
def test_small_noise_makes_both_kinds_of_drawing_agree(name, entropy):
    """Rounds with almost no noise reveal with certainty whether the unit is present."""
    stage = SDQAuditHarness(DIGEST, build_script(with_epsilon(STUDIES[name], 64.0)))
    rates = {
        watched.number: make_mechanism(stage.params, watched.part, watched.asked.is_choice).rate
        for watched in stage.observed_parts
    }
    clear = [number for number, rate in rates.items() if rate > 9]
    for which in (0, 1):
        full, drawn = (
            stage.run(which, entropy).evidence[clear],
            stage.draw(which, 20, entropy)[:, clear],
        )
        assert (drawn == full).all()
        assert full.sum() > 9 if which else full.sum() < -9


def test_studies_are_drawn_in_blocks(monkeypatch, entropy):
    monkeypatch.setattr(sdq, "_BLOCK", 7)
    assert stage_of("bayes").draw(0, 20, entropy).shape == (20, 1)
    assert stage_of("plus").draw(0, 0, entropy).shape == (0, 3)


def test_evidence_is_the_log_ratio():
    """Of sums by the distribution of the noise, of a choice by the candidates' probabilities."""
    choice, _, table = stage_of("plus").observed_parts
    rate = float(make_mechanism(table.params, table.part).rate)
    seen = np.array([[-5], [0], [1], [7]])
    assert table.sums.tolist() == [[0], [1]]
    assert table.compute_evidence(seen).tolist() == [-rate, -rate, rate, rate]
    ratios = np.exp(choice.compute_evidence(np.arange(3)))
    assert ratios.max() <= np.exp(choice.part.epsilon) and ratios.min() >= np.exp(
        -choice.part.epsilon
    )
    assert ratios.argmin() == np.argmin(choice.sums[1] - choice.sums[0])


@pytest.mark.untraced
@pytest.mark.parametrize(
    ("name", "samples", "least"),
    [
        ("plus", 6000, 1.0),
        ("two selected", 6000, 0.4),
        ("local", 8000, 0.6),
        ("bayes", 20_000, 1.6),
    ],
)
def test_audit_of_an_honest_study_is_consistent(name, samples, least, entropy):
    """The bound is near enough to the claim to detect faults; `least` is 6 deviations below it."""
    found = audit(STUDIES[name], samples, entropy, confidence=0.999)
    assert found.fault is None
    assert least < found.bound.epsilon <= found.claim.epsilon
    assert found.rows == ("all records but one", "all records")
    assert found.n_phases is None


def test_each_question_is_observed_separately_too(entropy):
    whole = compose_sequential(make_audit_plan(STUDIES["person"]).charges)
    seen = observe_study(
        STUDIES["person"], compute_claim(STUDIES["person"]), whole, 10, entropy, SDQPeer
    )
    separate = seen.observations[:-3]
    assert [one.seen_in.partition(" of ")[2].partition("/")[0] for one in separate] == [
        "",
        "choice",
        "choice",
        "table",
    ]
    assert {one.rows for one in seen.observations} == {("all persons but one", "all persons")}
    assert {one.first.size for one in separate} == {10}
    whole = compose_sequential(make_audit_plan(STUDIES["bayes"]).charges)
    assert (
        len(
            observe_study(
                STUDIES["bayes"], compute_claim(STUDIES["bayes"]), whole, 4, entropy, SDQPeer
            ).observations
        )
        == 1 + 3
    )


@pytest.mark.untraced
@pytest.mark.parametrize(
    ("name", "peer", "seen_in"),
    [
        ("plus", HalfNoise, "all results"),
        ("two selected", HalfNoise, "all results"),
        ("plus", ForEveryone, "all results"),
        ("bayes", ForEveryone, "all results"),
        ("plus", SureOfItself, "all results"),
        ("paper", Careless, "the result of sizes/0"),
        ("plus", Unlimited, "all results"),
        ("local", Unlimited, "all results"),
    ],
)
def test_audit_detects_a_database_that_reveals_more(name, peer, seen_in, entropy):
    found = audit(STUDIES[name], 8000, entropy, peer)
    assert found.fault == "the bound is above the claim: a peer reveals more than the label states"
    assert found.seen_in == seen_in


@pytest.mark.untraced
@pytest.mark.parametrize("name", ["plus", "bayes", "local"])
def test_audit_detects_a_second_answer_in_the_ledger(name, entropy):
    """The colluders answer twice too; otherwise the sum would not be opened."""
    honest, found = (audit(STUDIES[name], 10, entropy, peer) for peer in (SDQPeer, Forgetful))
    assert honest.fault is None
    assert found.packets == honest.packets + 1
    assert (
        found.fault
        == "the ledger charges more than the claim: a peer spends more than the label states"
    )


def test_audit_detects_database_that_does_not_answer_with_the_unit(entropy):
    """The replay shows it even if a sample of answers does not."""
    found = audit(STUDIES["plus"], 10, entropy, Shy)
    assert found.fault.startswith("outside the reports, what leaves depends on the rows: ")
    assert found.charge < found.price


def test_audit_detects_a_ledger_that_charges_too_little(entropy):
    found = audit(STUDIES["plus"], 10, entropy, Cheap)
    assert (
        found.fault
        == "the ledger charges less than the claim: a peer spends more than its ledger states"
    )


def test_scripted_aggregator_differs_from_the_script_only_in_its_states():
    script = build_script(STUDIES["bayes"])
    courses = make_hostile_states(script)
    pretence = SDQScriptedAggregator(script, courses)
    assert (pretence.prices, pretence.costliest_questions) == (
        script.prices,
        script.costliest_questions,
    )
    assert (
        pretence.make_round(courses[0]).question == "tables"
        and pretence.make_round(courses[1]) is None
    )
    assert pretence.advance(courses[0], (np.zeros(14, np.int64),)) == courses[1]
    assert pretence.build_model(courses[1], ()) is None


def test_colluder_adds_nothing_to_the_sums(entropy):
    stage = stage_of("plus")
    assert not SDQAuditColluder.draw_noisy_answer(
        None, stage.rounds[0], make_other_table(stage.params), None, entropy
    ).any()


def test_default_samples_are_more_for_sums():
    assert choose_samples(make_study(1.0)) == 200_000
    assert choose_samples(small_studies.make_study(1.0)) == 4000
