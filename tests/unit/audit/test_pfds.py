"""What holders of PFDS share, as an adversary sees it: a known tree, tables and sums that the unit moves, and holders that cheat."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shoal.audit import pfds, shares, trees
from shoal.audit.known import cut_off, many_studies, neighbours, one_study
from shoal.audit.pfds import look, many_tables
from shoal.audit.shares import Helper, Sums, hostile_course, unit_and_others
from shoal.audit.studies import SAMPLES_OF_SHARES, SAMPLES_OF_SUMS, claim_of, judge, plan_of, usual_samples
from shoal.audit.trees import Stage
from shoal.domain import Categorical, Schema
from shoal.privacy.accountant import sequential
from shoal.privacy.rounding import grains_up
from shoal.protocols.pfds.growing import draw_splits
from shoal.protocols.pfds.local import n_tables
from shoal.protocols.pfds.paper import n_counted, prices, questions
from shoal.protocols.pfds.params import Params
from shoal.protocols.pfds.sharing_peer import SharingPeer
from shoal.protocols.pfds.summing_peer import SummingPeer
from shoal.protocols.pfds.sums import SumScript
from shoal.protocols.pfds.tables_peer import TablesPeer
from shoal.protocols.pfds.tree import Level, Shape, check, depth_of
from shoal.study.pfds import params_of
from unit.audit.pfds_studies import (
    STUDIES,
    Again,
    BareLeaves,
    BareRoot,
    Careless,
    Coy,
    Eager,
    ForEveryone,
    FromItsRows,
    HalfNoise,
    HalfShares,
    HalfTables,
    ReusedDraw,
    Twice,
    Unlimited,
    cheap,
    kinds,
    shy,
)

DIGEST = bytes(range(32))
PAPER, LOCAL, SUMS = kinds("paper"), kinds("local"), kinds("sums", "gaussian")
HONEST = {"paper": SharingPeer, "local": TablesPeer, "sums": SummingPeer, "gaussian": SummingPeer}


def honest(name):
    return HONEST[name.partition(",")[0]]


def audit(name, samples, entropy, peer=None, confidence=0.9):
    """The audit of a study with fewer samples than a user may ask for."""
    study = STUDIES[name]
    whole = sequential(plan_of(study).charges)
    return judge(look(study, claim_of(study), whole, samples, entropy, peer), confidence, grains_up(whole.epsilon))


@pytest.fixture(autouse=True)
def _less(monkeypatch):
    """Enough to see data that nobody has paid for."""
    monkeypatch.setattr(pfds, "DATA", 60)
    monkeypatch.setattr(trees, "MOST_STUDIES", 1000)


# The known tree.


@pytest.mark.parametrize("name", PAPER)
def test_the_known_tree_is_one_of_the_study_and_all_rows_are_in_its_last_leaf(name):
    params = params_of(STUDIES[name])
    for known in (one_study(params), many_studies(params, 5)):
        shape, n_leaves = Shape.of(known.params), 1
        for level in known.levels:
            n_leaves = shape.n_below(level)
        if known.n == 1:
            check(params, known.levels, np.zeros(n_leaves, np.uint8))
        for table in known.tables:
            leaves = shape.route(known.levels, table.values).reshape(known.n, -1)
            assert (leaves == (np.arange(1, known.n + 1) * (n_leaves // known.n) - 1)[:, np.newaxis]).all()
        without, with_unit = known.tables
        assert len(with_unit) - len(without) == known.n * params.max_rows


@pytest.mark.parametrize("name", PAPER)
def test_many_studies_have_the_prices_of_one(name):
    params = params_of(STUDIES[name])
    many = many_studies(params, 50).params
    assert depth_of(many) == depth_of(params)
    assert [event.epsilon for event in prices(many).values()] == [event.epsilon for event in prices(params).values()]
    assert [event.parameters for event in prices(many).values()] == [event.parameters for event in prices(params).values()]


def test_a_tree_too_wide_for_two_studies_is_drawn_for_one(entropy):
    wide = [Categorical(name, [str(i) for i in range(140)], missing=False) for name in "abcd"]
    params = Params(Schema(wide, label=Categorical("ill", ["no", "yes"])), 4.0, 1000, variant="paper", minimum=2, max_depth=3)
    stage = Stage(DIGEST, params)
    assert stage.many.n == 1 and stage.many.params is params
    said = stage.draw(1, 2, entropy)
    assert said.shape == (2, len(questions(params)))
    # Categories are not chosen by rows.
    assert not said[:, :2].any() and said[:, 2:].all()


def score(table, attribute, value):
    """The Max operator, in one study."""
    below = table.values[:, attribute] < value
    return sum(np.bincount(table.outcomes[side], minlength=2).max() if side.any() else 0 for side in (below, ~below))


@pytest.mark.parametrize("heap", [0, 7])
@pytest.mark.parametrize("name", ["paper", "paper, person"])
def test_the_unit_makes_splits_below_the_middle_worth_more_and_no_others(name, heap):
    params = params_of(STUDIES[name])
    levels, shape = cut_off(params), Shape.of(params)
    tables = neighbours(params, levels, heap)
    for a in np.flatnonzero(shape.is_number).tolist():
        low, middle, high = np.unique(tables[1].values[:, a])[[0, -1 if heap == 0 else 1, -1]]
        for value in np.linspace(low + 1e-6, shape.highs[a] - 1e-6, 20):
            without, with_unit = (score(table, a, value) for table in tables)
            assert without == 2 * heap + params.max_rows
            assert with_unit - without == params.max_rows * (value <= middle)
        assert high < shape.highs[a]


def test_splits_say_what_their_chances_say(entropy):
    """Of one level, against the mechanism itself: with the unit a split below the middle is chosen as often as the evidence has it."""
    stage = Stage(DIGEST, params_of(STUDIES["paper, numbers"]))
    above, below = stage._of_splits
    assert np.exp(above) + np.exp(below) == pytest.approx(2)
    many = stage.many
    said = stage.draw(1, many.n, entropy)[:, 0]
    assert set(np.unique(said)) == {above, below}
    share, chance = (said == below).mean(), np.exp(below) / 2
    assert abs(share - chance) < 6 * np.sqrt(chance * (1 - chance) / many.n)
    level = draw_splits(many.params, many.tables[0], many.levels[:1], entropy)
    assert abs((level.splits <= many.middles[level.attributes]).mean() - 0.5) < 6 * 0.5 / np.sqrt(many.n)


@pytest.mark.parametrize("name", ["paper", "paper, categories", "paper, person"])
def test_where_noise_is_small_counts_say_for_certain_whether_the_unit_is_there(name, entropy):
    params = replace(params_of(STUDIES[name]), epsilon=64.0)
    stage = Stage(DIGEST, params)
    at = [i for i, question in enumerate(prices(params)) if not question.startswith("split")]
    whole = [event.epsilon for event in prices(params).values()]
    for which in (0, 1):
        # An answer without noise says all that its price allows.
        assert np.median(stage.draw(which, 50, entropy), axis=0)[at] == pytest.approx(np.array(whole)[at] * (2 * which - 1))
    without, with_unit = (list(stage.share(which, 20, entropy).values()) for which in (0, 1))
    assert without[0].max() < -5 and with_unit[0].min() > 5
    moved = [np.median(told) - np.median(before) for before, told in zip(without[1:], with_unit[1:], strict=True)]
    assert moved == [params.max_rows, params.max_rows * (n_counted(params) > 1)]


def test_without_two_levels_of_counts_there_is_nothing_to_compare(entropy):
    stage = Stage(DIGEST, params_of(STUDIES["paper, no projection"]))
    data, *counts = stage.share(1, 3, entropy).values()
    assert data.any() and not np.any(counts)


def test_studies_are_drawn_in_blocks(monkeypatch, entropy):
    monkeypatch.setattr(trees, "MOST_STUDIES", 7)
    monkeypatch.setattr(pfds, "_BLOCK", 7)
    monkeypatch.setattr(shares, "_BLOCK", 7)
    stage = Stage(DIGEST, params_of(STUDIES["paper"]))
    assert stage.draw(0, 20, entropy).shape == (20, 5)
    assert stage.draw(0, 0, entropy).shape == (0, 5)
    assert Sums(DIGEST, params_of(STUDIES["sums"])).draw(0, 20, entropy).shape == (20, 4)
    assert Sums(DIGEST, params_of(STUDIES["sums"])).draw(0, 0, entropy).shape == (0, 4)
    (told,) = pfds.draw_tables(DIGEST, params_of(STUDIES["local"]), 1, 20, entropy, TablesPeer).told.values()
    assert told.shape == (20,)


@pytest.mark.parametrize("name", PAPER)
def test_a_holder_that_is_run_in_full_has_its_ledger_at_the_price(name, entropy):
    stage = Stage(DIGEST, params_of(STUDIES[name]))
    for which in (0, 1):
        run = stage.run(which, entropy)
        assert run.charged == grains_up(claim_of(STUDIES[name]).epsilon)
        assert run.packets == len(stage.prices) + 1


# Tables and sums.


@pytest.mark.parametrize("name", SUMS)
def test_the_unit_moves_every_sum_as_far_as_its_noise_is_made_for(name):
    stage = Sums(DIGEST, params_of(STUDIES[name]))
    for event, sums in zip(stage.prices.values(), stage.sums, strict=True):
        moved = sums[1] - sums[0]
        if event.delta:
            assert (moved**2).sum() / 2 / event.parameters["sigma"] ** 2 == pytest.approx(event.rho, rel=1e-4)
        else:
            assert np.abs(moved).sum() / event.parameters["scale"] == pytest.approx(event.epsilon)


@pytest.mark.untraced
@pytest.mark.parametrize("name", SUMS)
def test_a_study_that_is_run_in_full_has_every_ledger_at_the_price(name, entropy):
    study = STUDIES[name]
    stage = Sums(DIGEST, params_of(study))
    run = stage.run(1, entropy)
    assert run.evidence.shape == (len(stage.prices),) and run.packets == len(stage.prices)
    assert run.charged == (grains_up(sequential(plan_of(study).charges).epsilon),) * 2


@pytest.mark.parametrize("name", ["sums", "sums, number", "sums, classes"])
def test_where_noise_is_small_both_ways_of_drawing_see_the_same(name, entropy):
    """In sums with next to no noise, which tell for certain whether the unit is there."""
    stage = Sums(DIGEST, replace(params_of(STUDIES[name]), epsilon=64.0))
    clear = [i for i, (event, sums) in enumerate(zip(stage.prices.values(), stage.sums, strict=True)) if event.epsilon / sums.shape[1] > 9]
    assert clear
    for which in (0, 1):
        full, drawn = stage.run(which, entropy).evidence[clear], stage.draw(which, 20, entropy)[:, clear]
        assert (np.sign(drawn) == np.sign(full)).all()
        assert (full > 4).all() if which else (full < -4).all()


def test_the_aggregator_s_course_can_be_counted_with():
    for name in SUMS:
        script = SumScript(params_of(STUDIES[name]))
        assert [script.question(hostile_course(script, i)) for i in range(len(script.questions))] == list(script.questions)


def test_a_helper_puts_nothing_in(entropy):
    stage = Sums(DIGEST, params_of(STUDIES["sums"]))
    course, rows = stage._courses[0], stage._tables[0]
    helper = Helper(stage.script, stage._members[0], rows)
    assert helper.noisy(course, rows, entropy).tolist() == [0] * stage.script.size("tables")


@pytest.mark.parametrize("name", LOCAL)
def test_many_tables_are_priced_as_those_of_one_study(name):
    params = params_of(STUDIES[name])
    many = many_tables(params, 30)
    assert many.arities == (30,) * len(params.arities)
    assert n_tables(many) == n_tables(params)
    without, with_unit = unit_and_others(params)
    assert len(with_unit) - len(without) == params.max_rows


# Audits.


@pytest.mark.untraced
@pytest.mark.parametrize(
    ("name", "samples", "least"),
    [
        ("paper", 4000, 0.2),
        ("paper, categories", 2000, 0.2),
        ("paper, person", 2000, 0.2),
        ("paper, number", 2000, 0.2),
        ("local", 4000, 0.6),
        ("local, three", 4000, 0.3),
        ("local, person", 4000, 0.3),
        ("sums", 4000, 0.3),
        ("sums, classes", 4000, 0.5),
        ("gaussian", 6000, 0.2),
    ],
)
def test_an_honest_study_is_consistent(name, samples, least, entropy):
    """And the bound is near enough to the claim to show what is wrong."""
    found = audit(name, samples, entropy, confidence=0.999)
    assert found.fault is None
    assert least * found.claim.epsilon < found.bound.epsilon <= found.claim.epsilon == claim_of(STUDIES[name]).epsilon
    assert found.seen_in.startswith("all that was released")
    unit = "person" if "person" in name else "record"
    assert found.rows == (f"all {unit}s but one", f"all {unit}s")
    assert found.n_phases is None


@pytest.mark.parametrize(
    ("name", "peer", "samples", "seen_in"),
    [
        ("paper", BareLeaves, 1000, "the answer to leaves"),
        ("paper, thrifty", BareRoot, 100, "the number of all rows"),
        ("paper, no projection", HalfNoise, 8000, "the answer to leaves"),
        ("paper, numbers", Eager, 4000, "the answer to split/"),
        ("paper, thrifty", ReusedDraw, 100, "how the counts of two levels differ"),
        ("paper, thrifty", FromItsRows, 100, "the data alone"),
        ("paper, thrifty", Coy, 100, "the data alone"),
        ("local", HalfTables, 8000, "all that was released"),
        ("local, person", HalfTables, 20_000, "all that was released"),
        ("local, three", Twice, 20_000, "all that was released"),
        ("sums", HalfShares, 8000, "the answer to"),
        ("sums, classes", ForEveryone, 8000, "all that was released"),
        ("sums", Careless, 1000, "the answer to calibration"),
        ("sums", Unlimited, 8000, "the answer to"),
        ("gaussian, classes", HalfShares, 16_000, "all that was released, as a zero-concentrated sum"),
        ("gaussian, classes", ForEveryone, 16_000, "all that was released, as a zero-concentrated sum"),
        ("gaussian, classes", Unlimited, 16_000, "all that was released, as a zero-concentrated sum"),
    ],
)
def test_a_holder_that_reveals_more_is_caught(name, peer, samples, seen_in, entropy):
    found = audit(name, samples, entropy, peer)
    assert found.fault == "the bound is above the claim, so a peer reveals more than the label says"
    assert found.seen_in.startswith(seen_in)


def test_leaves_that_are_released_again_are_found_in_the_ledger(entropy):
    found = audit("paper", 100, entropy, Again)
    assert found.packets == len(prices(params_of(STUDIES["paper"]))) + 2
    assert found.fault == "the ledger counts more than the claim, so a peer spends more than the label says"


@pytest.mark.parametrize("name", ["paper", "local", "sums"])
@pytest.mark.parametrize("make", [cheap, shy])
def test_a_ledger_that_counts_too_little_is_found(name, make, entropy):
    """Of a holder that tells it too little, and of one that does not answer where the unit is there."""
    found = audit(name, 100, entropy, make(honest(name)))
    assert found.fault == "the ledger counts less than the claim, so a peer spends more than its ledger says"


def test_each_answer_is_held_against_its_own_price(entropy):
    study = STUDIES["gaussian"]
    claim = claim_of(study)
    seen = look(study, claim, sequential(plan_of(study).charges), 10, entropy)
    parts = [one for one in seen.looks if one.is_part]
    assert [one.claim.epsilon for one in parts] == [event.epsilon for event in SumScript(params_of(study)).prices.values()]
    assert all(one.by_rho for one in parts)
    assert [(one.by_rho, one.claim) for one in seen.looks if not one.is_part] == [(False, claim), (True, claim)]
    assert {one.first.size for one in seen.looks} == {10}


def test_what_is_looked_at_of_a_tree(entropy):
    study = STUDIES["paper"]
    seen = look(study, claim_of(study), sequential(plan_of(study).charges), 200, entropy)
    others = [one for one in seen.looks if not one.is_part]
    assert [(one.seen_in, one.first.size) for one in others] == [
        ("all that was released", 200),
        ("the data alone", 60),
        ("the number of all rows", 60),
        ("how the counts of two levels differ", 60),
    ]
    assert not any(one.by_rho for one in seen.looks)
    assert seen.tried.endswith("60 with data, 1 in full")


def test_more_are_usual_where_many_are_drawn_at_once():
    assert usual_samples(STUDIES["sums"]) == SAMPLES_OF_SHARES
    assert {usual_samples(STUDIES[name]) for name in ("paper", "local")} == {SAMPLES_OF_SUMS}


def test_a_level_of_the_known_tree_is_below_what_tells_studies_apart():
    params = params_of(STUDIES["paper, categories"])
    first = Level(np.array([0], np.int16), np.zeros(1))
    assert [level.attributes[0] for level in cut_off(params, [first])] == [0, 2, 1]
