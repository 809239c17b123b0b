"""A whole study of SDQ as its miner sees it: a course along the unit's cells, sums read from whole runs, and databases that cheat."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.audit import sdq
from shoal.audit.miners import Helper, Pretence, elsewhere, hostile_courses, neighbours
from shoal.audit.sdq import Stage, look
from shoal.audit.studies import SAMPLES, SAMPLES_OF_SUMS, claim_of, judge, plan_of, usual_samples
from shoal.mechanisms.shares import SharedMax
from shoal.privacy.accountant import sequential
from shoal.privacy.rounding import grains_up
from shoal.protocols.sdq.noise import mechanism_of
from shoal.protocols.sdq.peer import SDQPeer
from shoal.study.sdq import params_of, script_of
from unit.audit import small_studies
from unit.audit.sdq_studies import STUDIES, Careless, Cheap, ForEveryone, Forgetful, HalfNoise, Shy, SureOfItself, Unlimited, make_study

DIGEST = bytes(range(32))
NAMES = list(STUDIES)


@pytest.fixture(autouse=True)
def _one_run(monkeypatch):
    """One study with each of the tables is run in full: enough to see what its ledgers count."""
    monkeypatch.setattr(sdq, "RUNS", 1)


def stage_of(name, make_peer=SDQPeer):
    return Stage(DIGEST, script_of(STUDIES[name]), make_peer)


def audit(study, samples, entropy, peer=SDQPeer, confidence=0.9):
    """The audit of a study with fewer samples than a user may ask for."""
    whole = sequential(plan_of(study).charges)
    return judge(look(study, claim_of(study), whole, samples, entropy, peer), confidence, grains_up(whole.epsilon))


def with_epsilon(study, epsilon):
    return study.model_copy(update={"privacy": study.privacy.model_copy(update={"epsilon": epsilon})})


@pytest.mark.parametrize("name", NAMES)
def test_the_unit_pays_the_whole_claim_on_the_miner_s_course(name):
    """In every round it moves as many counts, as far, as the noise is made for; a choice moves all scores but one."""
    stage, spent = stage_of(name), []
    for watched in stage.watched:
        mechanism, moved = mechanism_of(stage.params, watched.part, watched.asked.is_choice), watched.sums[1] - watched.sums[0]
        if isinstance(mechanism, SharedMax):
            assert sorted(moved.tolist()) == [0] + [stage.params.max_rows] * (moved.size - 1)
            spent.append(float(mechanism.rate) * moved.max())
        else:
            spent.append(float(mechanism.rate) * np.abs(moved).sum())
    assert {watched.number for watched in stage.watched} == set(range(len(stage.rounds)))
    assert sum(spent) == pytest.approx(claim_of(STUDIES[name]).epsilon, abs=1e-9)


@pytest.mark.parametrize("name", ["paper", "sums", "plus"])
def test_the_miner_reads_the_counts_that_the_unit_changes(name):
    stage = stage_of(name)
    for number, asked in enumerate(stage.rounds):
        counts = [np.concatenate([part.count(table) for part in asked.parts]) for table in stage._tables]
        read = [watched.read(np.arange(asked.size)) for watched in stage.watched if watched.number == number]
        if not asked.is_choice:
            assert np.concatenate(read, axis=1)[0].tolist() == np.flatnonzero(counts[0] != counts[1]).tolist()


def test_the_course_is_the_one_that_the_label_prices():
    for name in NAMES:
        script = script_of(STUDIES[name])
        questions = [asked.question for course in hostile_courses(script) if (asked := script.round(course))]
        assert len(questions) == len(set(questions)) == sum(count for _, count in script.dearest)


@pytest.mark.parametrize("max_rows", [1, 3])
def test_without_noise_the_first_choice_would_give_the_unit_away(max_rows):
    stage = stage_of("person" if max_rows > 1 else "plus")
    first = stage.watched[0]
    without, with_unit = np.argmax(first.sums, axis=1)
    assert first.asked.is_choice and without != with_unit
    assert first.sums[0][without] - np.delete(first.sums[0], without).max() == max_rows


@pytest.mark.parametrize("path", [(), (1,), (1, 2), (2, 0, 1)])
def test_another_class_outnumbers_the_unit_s_along_the_path_alone(path):
    params = params_of(STUDIES["person"])
    without, with_unit = neighbours(params, path)
    assert len(with_unit) - len(without) == params.max_rows
    assert not with_unit.cells[len(without) :].any() and not with_unit.labels[len(without) :].any()
    for chosen in range(8):
        inside = (without.cells[:, [j for j in range(3) if chosen >> j & 1]] == 0).all(axis=1)
        lead = int((2 * without.labels[inside] - 1).sum())
        is_beginning = any(chosen == sum(1 << j for j in path[:i]) for i in range(1, len(path) + 1))
        assert lead == params.max_rows * is_beginning
    assert elsewhere(params).cells.all()


@pytest.mark.untraced
@pytest.mark.parametrize("name", NAMES)
def test_a_whole_run_ends_with_every_ledger_at_the_price(name, entropy):
    stage = stage_of(name)
    run = stage.run(1, entropy)
    assert set(run.charged) == {grains_up(sequential(plan_of(STUDIES[name]).charges).epsilon)}
    assert run.packets == len(stage.rounds)
    params = stage.params
    assert len(run.charged) == (5 if name == "two selected" else 1 if name == "local" else params.minimum - params.max_colluders)


@pytest.mark.untraced
@pytest.mark.parametrize("name", ["plus", "three missing", "bayes", "two selected", "local"])
def test_where_noise_is_small_both_ways_of_drawing_see_the_same(name, entropy):
    """In rounds with next to no noise, which tell for certain whether the unit is there."""
    stage = Stage(DIGEST, script_of(with_epsilon(STUDIES[name], 64.0)))
    rates = {watched.number: mechanism_of(stage.params, watched.part, watched.asked.is_choice).rate for watched in stage.watched}
    clear = [number for number, rate in rates.items() if rate > 9]
    for which in (0, 1):
        full, drawn = stage.run(which, entropy).evidence[clear], stage.draw(which, 20, entropy)[:, clear]
        assert (drawn == full).all()
        assert full.sum() > 9 if which else full.sum() < -9


def test_studies_are_drawn_in_blocks(monkeypatch, entropy):
    monkeypatch.setattr(sdq, "_BLOCK", 7)
    assert stage_of("bayes").draw(0, 20, entropy).shape == (20, 1)
    assert stage_of("plus").draw(0, 0, entropy).shape == (0, 3)


def test_evidence_is_the_log_ratio():
    """Of sums by the law of the noise; of a choice by the chances of the candidates, which add up to 1 either way."""
    choice, _, table = stage_of("plus").watched
    rate = float(mechanism_of(table.params, table.part).rate)
    seen = np.array([[-5], [0], [1], [7]])
    assert table.sums.tolist() == [[0], [1]]
    assert table.evidence(seen).tolist() == [-rate, -rate, rate, rate]
    ratios = np.exp(choice.evidence(np.arange(3)))
    assert ratios.max() <= np.exp(choice.part.epsilon) and ratios.min() >= np.exp(-choice.part.epsilon)
    assert ratios.argmin() == np.argmin(choice.sums[1] - choice.sums[0])


@pytest.mark.untraced
@pytest.mark.parametrize(
    ("name", "samples", "least"), [("plus", 2000, 1.0), ("two selected", 2000, 0.4), ("local", 2000, 0.4), ("bayes", 20_000, 1.6)]
)
def test_an_honest_study_is_consistent(name, samples, least, entropy):
    """And the bound is near enough to the claim to show what is wrong."""
    found = audit(STUDIES[name], samples, entropy, confidence=0.999)
    assert found.fault is None
    assert least < found.bound.epsilon <= found.claim.epsilon
    assert found.rows == ("all records but one", "all records")
    assert found.n_phases is None


def test_each_question_is_looked_at_by_itself_too(entropy):
    whole = sequential(plan_of(STUDIES["person"]).charges)
    seen = look(STUDIES["person"], claim_of(STUDIES["person"]), whole, 10, entropy, SDQPeer)
    assert [one.seen_in.partition(" of ")[2].partition("/")[0] for one in seen.looks] == ["", "choice", "choice", "table"]
    assert {one.rows for one in seen.looks} == {("all persons but one", "all persons")}
    assert {one.first.size for one in seen.looks} == {10}
    whole = sequential(plan_of(STUDIES["bayes"]).charges)
    assert len(look(STUDIES["bayes"], claim_of(STUDIES["bayes"]), whole, 4, entropy, SDQPeer).looks) == 1


@pytest.mark.untraced
@pytest.mark.parametrize(
    ("name", "peer", "seen_in"),
    [
        ("plus", HalfNoise, "all that was learned"),
        ("two selected", HalfNoise, "all that was learned"),
        ("plus", ForEveryone, "all that was learned"),
        ("bayes", ForEveryone, "all that was learned"),
        ("plus", SureOfItself, "all that was learned"),
        ("paper", Careless, "what was learned of sizes/0"),
        ("plus", Unlimited, "all that was learned"),
        ("local", Unlimited, "all that was learned"),
    ],
)
def test_a_database_that_reveals_more_is_caught(name, peer, seen_in, entropy):
    found = audit(STUDIES[name], 8000, entropy, peer)
    assert found.fault == "the bound is above the claim, so a peer reveals more than the label says"
    assert found.seen_in == seen_in


@pytest.mark.untraced
@pytest.mark.parametrize("name", ["plus", "bayes", "local"])
def test_a_database_that_answers_twice_is_found_in_its_ledger(name, entropy):
    """The second time its colluders help the miner, or the sum would not be opened."""
    honest, found = (audit(STUDIES[name], 10, entropy, peer) for peer in (SDQPeer, Forgetful))
    assert honest.fault is None
    assert found.packets == honest.packets + 1
    assert found.fault == "the ledger counts more than the claim, so a peer spends more than the label says"


@pytest.mark.parametrize("peer", [Cheap, Shy])
def test_a_ledger_that_counts_too_little_is_found(peer, entropy):
    """One that tells it too little, and one that does not answer where the unit is there."""
    found = audit(STUDIES["plus"], 10, entropy, peer)
    assert found.fault == "the ledger counts less than the claim, so a peer spends more than its ledger says"


def test_a_pretence_is_the_study_s_script_but_for_its_courses():
    script = script_of(STUDIES["bayes"])
    courses = hostile_courses(script)
    pretence = Pretence(script, courses)
    assert (pretence.prices, pretence.dearest) == (script.prices, script.dearest)
    assert pretence.round(courses[0]).question == "tables" and pretence.round(courses[1]) is None
    assert pretence.advance(courses[0], (np.zeros(14, np.int64),)) == courses[1]
    assert pretence.model(courses[1], ()) is None


def test_a_helper_puts_nothing_in(entropy):
    stage = stage_of("plus")
    assert not Helper.noisy(None, stage.rounds[0], elsewhere(stage.params), None, entropy).any()


def test_more_studies_of_sums_are_usual():
    assert usual_samples(make_study(1.0)) == SAMPLES_OF_SUMS
    assert usual_samples(small_studies.make_study(1.0)) == SAMPLES
