"""Audit of PFDS: a known tree, tables and sums that the unit changes, dishonest holders."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shoal.audit import pfds, pfds_paper
from shoal.audit import pfds as shares
from shoal.audit.pfds import (
    PFDSAuditColluder,
    PFDSSumsAuditHarness,
    make_hostile_state,
    make_plus_neighbours,
    observe_study,
    widen_params,
)
from shoal.audit.pfds_paper import (
    PFDSPaperAuditHarness,
    make_combined_tree,
    make_known_tree,
    make_levels,
    make_neighbours,
)
from shoal.audit.study import (
    choose_samples,
    compute_claim,
    evaluate_observations,
    make_audit_plan,
)
from shoal.data.schema import Categorical, Schema
from shoal.privacy.accountant import compose_sequential
from shoal.privacy.rounding import grains_up
from shoal.protocols.pfds.paper.growth import draw_splits
from shoal.protocols.pfds.paper.peer import PaperPeer
from shoal.protocols.pfds.paper.script import compute_prices, count_projected_levels, list_questions
from shoal.protocols.pfds.paper.tree import SplitLevel, TreeShape, check_tree, compute_depth
from shoal.protocols.pfds.params import PFDSParams
from shoal.protocols.pfds.peer import LocalPeer, SecureSumPeer
from shoal.protocols.pfds.script import SecureSumScript
from shoal.protocols.pfds.tables import choose_n_tables
from shoal.study.pfds import build_params
from tests.unit.audit.pfds_studies import (
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
HONEST = {"paper": PaperPeer, "local": LocalPeer, "sums": SecureSumPeer, "gaussian": SecureSumPeer}


def honest(name):
    return HONEST[name.partition(",")[0]]


def audit(name, samples, entropy, peer=None, confidence=0.9):
    """Audit a study with fewer samples than a user may ask for."""
    study = STUDIES[name]
    whole = compose_sequential(make_audit_plan(study).charges)
    return evaluate_observations(
        observe_study(study, compute_claim(study), whole, samples, entropy, peer),
        confidence,
        grains_up(whole.epsilon),
    )


@pytest.fixture(autouse=True)
def _less(monkeypatch):
    """Draw fewer holders with data: enough to detect data without a price."""
    monkeypatch.setattr(pfds, "DATA_SAMPLES", 60)
    monkeypatch.setattr(pfds_paper, "MOST_STUDIES", 1000)


# The known tree.


@pytest.mark.parametrize("name", PAPER)
def test_known_tree_is_valid_and_has_all_rows_in_its_last_leaf(name):
    params = build_params(STUDIES[name])
    for known in (make_known_tree(params), make_combined_tree(params, 5)):
        shape, n_leaves = TreeShape.from_params(known.params), 1
        for level in known.levels:
            n_leaves = shape.count_below(level)
        if known.n == 1:
            check_tree(params, known.levels, np.zeros(n_leaves, np.uint8))
        for table in known.tables:
            leaves = shape.route(known.levels, table.values).reshape(known.n, -1)
            assert (
                leaves == (np.arange(1, known.n + 1) * (n_leaves // known.n) - 1)[:, np.newaxis]
            ).all()
        without, with_unit = known.tables
        assert len(with_unit) - len(without) == known.n * params.max_rows


@pytest.mark.parametrize("name", PAPER)
def test_combined_tree_has_the_prices_of_one_study(name):
    params = build_params(STUDIES[name])
    many = make_combined_tree(params, 50).params
    assert compute_depth(many) == compute_depth(params)
    assert [event.epsilon for event in compute_prices(many).values()] == [
        event.epsilon for event in compute_prices(params).values()
    ]
    assert [event.parameters for event in compute_prices(many).values()] == [
        event.parameters for event in compute_prices(params).values()
    ]


def test_combined_tree_too_wide_for_two_studies_has_one(entropy):
    wide = [Categorical(name, [str(i) for i in range(140)], missing=False) for name in "abcd"]
    params = PFDSParams(
        Schema(wide, label=Categorical("ill", ["no", "yes"])),
        4.0,
        1000,
        variant="paper",
        minimum=2,
        max_depth=3,
    )
    stage = PFDSPaperAuditHarness(DIGEST, params)
    assert stage.combined_tree.n == 1 and stage.combined_tree.params is params
    said = stage.draw(1, 2, entropy)
    assert said.shape == (2, len(list_questions(params)))
    # Categories are not chosen by rows.
    assert not said[:, :2].any() and said[:, 2:].all()


def score(table, attribute, value):
    """The Max operator, in one study."""
    below = table.values[:, attribute] < value
    return sum(
        np.bincount(table.outcomes[side], minlength=2).max() if side.any() else 0
        for side in (below, ~below)
    )


@pytest.mark.parametrize("heap", [0, 7])
@pytest.mark.parametrize("name", ["paper", "paper, person"])
def test_unit_raises_the_worth_of_splits_below_the_middle_only(name, heap):
    params = build_params(STUDIES[name])
    levels, shape = make_levels(params), TreeShape.from_params(params)
    tables = make_neighbours(params, levels, heap)
    for a in np.flatnonzero(shape.is_number).tolist():
        low, middle, high = np.unique(tables[1].values[:, a])[[0, -1 if heap == 0 else 1, -1]]
        for value in np.linspace(low + 1e-6, shape.highs[a] - 1e-6, 20):
            without, with_unit = (score(table, a, value) for table in tables)
            assert without == 2 * heap + params.max_rows
            assert with_unit - without == params.max_rows * (value <= middle)
        assert high < shape.highs[a]


def test_split_evidence_is_the_log_ratio_of_its_probabilities(entropy):
    """For one level, compared with the mechanism itself."""
    stage = PFDSPaperAuditHarness(DIGEST, build_params(STUDIES["paper, numbers"]))
    above, below = stage._split_evidence
    assert np.exp(above) + np.exp(below) == pytest.approx(2)
    many = stage.combined_tree
    said = stage.draw(1, many.n, entropy)[:, 0]
    assert set(np.unique(said)) == {above, below}
    share, chance = (said == below).mean(), np.exp(below) / 2
    assert abs(share - chance) < 6 * np.sqrt(chance * (1 - chance) / many.n)
    level = draw_splits(many.params, many.tables[0], many.levels[:1], entropy)
    assert abs((level.splits <= many.middles[level.attributes]).mean() - 0.5) < 6 * 0.5 / np.sqrt(
        many.n
    )


@pytest.mark.parametrize("name", ["paper", "paper, categories", "paper, person"])
def test_small_noise_makes_counts_reveal_the_unit(name, entropy):
    params = replace(build_params(STUDIES[name]), epsilon=64.0)
    stage = PFDSPaperAuditHarness(DIGEST, params)
    at = [
        i for i, question in enumerate(compute_prices(params)) if not question.startswith("split")
    ]
    whole = [event.epsilon for event in compute_prices(params).values()]
    for which in (0, 1):
        # An answer without noise says all that its price allows.
        assert np.median(stage.draw(which, 50, entropy), axis=0)[at] == pytest.approx(
            np.array(whole)[at] * (2 * which - 1)
        )
    without, with_unit = (
        list(stage.draw_data_evidence(which, 20, entropy)[0].values()) for which in (0, 1)
    )
    assert without[0].max() < -5 and with_unit[0].min() > 5
    moved = [
        np.median(told) - np.median(before)
        for before, told in zip(without[1:], with_unit[1:], strict=True)
    ]
    assert moved == [params.max_rows, params.max_rows * (count_projected_levels(params) > 1)]


def test_one_level_of_counts_has_no_difference(entropy):
    stage = PFDSPaperAuditHarness(DIGEST, build_params(STUDIES["paper, no projection"]))
    data, *counts = stage.draw_data_evidence(1, 3, entropy)[0].values()
    assert data.any() and not np.any(counts)


def test_paper_studies_are_drawn_in_blocks(monkeypatch, entropy):
    monkeypatch.setattr(pfds_paper, "MOST_STUDIES", 7)
    monkeypatch.setattr(pfds, "_BLOCK", 7)
    monkeypatch.setattr(shares, "_BLOCK", 7)
    stage = PFDSPaperAuditHarness(DIGEST, build_params(STUDIES["paper"]))
    assert stage.draw(0, 20, entropy).shape == (20, 5)
    assert stage.draw(0, 0, entropy).shape == (0, 5)
    assert PFDSSumsAuditHarness(DIGEST, build_params(STUDIES["sums"])).draw(
        0, 20, entropy
    ).shape == (20, 4)
    assert PFDSSumsAuditHarness(DIGEST, build_params(STUDIES["sums"])).draw(
        0, 0, entropy
    ).shape == (0, 4)
    (told,) = pfds.draw_tables(
        DIGEST, build_params(STUDIES["local"]), 1, 20, entropy, LocalPeer
    ).evidence.values()
    assert told.shape == (20,)


@pytest.mark.parametrize("name", PAPER)
def test_holder_run_in_full_is_charged_the_price(name, entropy):
    stage = PFDSPaperAuditHarness(DIGEST, build_params(STUDIES[name]))
    for which in (0, 1):
        run = stage.run(which, entropy)
        assert run.charge == grains_up(compute_claim(STUDIES[name]).epsilon)
        assert run.packets == len(stage.prices) + 1


# Tables and sums.


@pytest.mark.parametrize("name", SUMS)
def test_unit_changes_each_sum_by_its_sensitivity(name):
    stage = PFDSSumsAuditHarness(DIGEST, build_params(STUDIES[name]))
    for event, sums in zip(stage.prices.values(), stage.sums, strict=True):
        moved = sums[1] - sums[0]
        if event.delta:
            assert (moved**2).sum() / 2 / event.parameters["sigma"] ** 2 == pytest.approx(
                event.rho, rel=1e-4
            )
        else:
            assert np.abs(moved).sum() / event.parameters["scale"] == pytest.approx(event.epsilon)


@pytest.mark.untraced
@pytest.mark.parametrize("name", SUMS)
def test_study_run_in_full_charges_each_ledger_the_price(name, entropy):
    study = STUDIES[name]
    stage = PFDSSumsAuditHarness(DIGEST, build_params(study))
    run = stage.run(1, entropy)
    assert run.evidence.shape == (len(stage.prices),) and run.packets == len(stage.prices)
    assert (
        run.charges == (grains_up(compose_sequential(make_audit_plan(study).charges).epsilon),) * 2
    )


@pytest.mark.parametrize("name", ["sums", "sums, number", "sums, classes"])
def test_small_noise_makes_both_kinds_of_drawing_agree(name, entropy):
    """Sums with almost no noise reveal with certainty whether the unit is present."""
    stage = PFDSSumsAuditHarness(DIGEST, replace(build_params(STUDIES[name]), epsilon=64.0))
    clear = [
        i
        for i, (event, sums) in enumerate(zip(stage.prices.values(), stage.sums, strict=True))
        if event.epsilon / sums.shape[1] > 9
    ]
    assert clear
    for which in (0, 1):
        full, drawn = (
            stage.run(which, entropy).evidence[clear],
            stage.draw(which, 20, entropy)[:, clear],
        )
        assert (np.sign(drawn) == np.sign(full)).all()
        assert (full > 4).all() if which else (full < -4).all()


def test_hostile_state_can_be_counted_with():
    for name in SUMS:
        script = SecureSumScript(build_params(STUDIES[name]))
        assert [
            script.find_question(make_hostile_state(script, i))
            for i in range(len(script.questions))
        ] == list(script.questions)


def test_colluder_adds_nothing_to_the_sums(entropy):
    stage = PFDSSumsAuditHarness(DIGEST, build_params(STUDIES["sums"]))
    course, rows = stage._states[0], stage._tables[0]
    helper = PFDSAuditColluder(stage.script, stage._members[0], rows)
    assert helper.draw_noisy_answer(course, rows, entropy).tolist() == [
        0
    ] * stage.script.compute_size("tables")


@pytest.mark.parametrize("name", LOCAL)
def test_widened_tables_have_the_price_of_one_study(name):
    params = build_params(STUDIES[name])
    many = widen_params(params, 30)
    assert many.arities == (30,) * len(params.arities)
    assert choose_n_tables(many) == choose_n_tables(params)
    without, with_unit = make_plus_neighbours(params)
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
def test_audit_of_an_honest_study_is_consistent(name, samples, least, entropy):
    """The bound is also near enough to the claim to detect faults."""
    found = audit(name, samples, entropy, confidence=0.999)
    assert found.fault is None
    assert (
        least * found.claim.epsilon
        < found.bound.epsilon
        <= found.claim.epsilon
        == compute_claim(STUDIES[name]).epsilon
    )
    # One number alone can be as informative as all releases.
    assert found.seen_in.startswith(("all releases", "searched number"))
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
        ("paper, thrifty", ReusedDraw, 100, "the difference of the counts of two levels"),
        ("paper, thrifty", FromItsRows, 100, "the data alone"),
        ("paper, thrifty", Coy, 100, "the data alone"),
        ("local", HalfTables, 8000, "all releases"),
        ("local, person", HalfTables, 20_000, "all releases"),
        ("local, three", Twice, 20_000, "all releases"),
        ("sums", HalfShares, 8000, "the answer to"),
        ("sums, classes", ForEveryone, 8000, "all releases"),
        ("sums", Careless, 1000, "the answer to calibration"),
        ("sums", Unlimited, 8000, "the answer to"),
        (
            "gaussian, classes",
            HalfShares,
            16_000,
            "all releases, as a zero-concentrated sum",
        ),
        (
            "gaussian, classes",
            ForEveryone,
            16_000,
            "all releases, as a zero-concentrated sum",
        ),
        (
            "gaussian, classes",
            Unlimited,
            16_000,
            "all releases, as a zero-concentrated sum",
        ),
    ],
)
def test_audit_detects_a_holder_that_reveals_more(name, peer, samples, seen_in, entropy):
    found = audit(name, samples, entropy, peer)
    assert found.fault == "the bound is above the claim: a peer reveals more than the label states"
    assert found.seen_in.startswith(seen_in)


def test_audit_detects_leaves_released_twice_in_the_ledger(entropy):
    found = audit("paper", 100, entropy, Again)
    assert found.packets == len(compute_prices(build_params(STUDIES["paper"]))) + 2
    assert (
        found.fault
        == "the ledger charges more than the claim: a peer spends more than the label states"
    )


@pytest.mark.parametrize("name", ["paper", "local", "sums"])
def test_audit_detects_a_ledger_that_charges_too_little(name, entropy):
    found = audit(name, 100, entropy, cheap(honest(name)))
    assert (
        found.fault
        == "the ledger charges less than the claim: a peer spends more than its ledger states"
    )


@pytest.mark.parametrize("name", ["paper", "local", "sums"])
def test_audit_detects_holder_that_does_not_answer_with_the_unit(name, entropy):
    """Replays show it even if a sample of answers does not."""
    found = audit(name, 100, entropy, shy(honest(name)))
    assert found.fault is not None
    assert "a reservation in the ledger of " in found.replay.leak
    assert found.charge < found.price


def test_each_answer_is_compared_with_its_price(entropy):
    study = STUDIES["gaussian"]
    claim = compute_claim(study)
    seen = observe_study(
        study, claim, compose_sequential(make_audit_plan(study).charges), 10, entropy
    )
    parts = [one for one in seen.observations if one.is_part]
    assert [one.claim.epsilon for one in parts] == [
        event.epsilon for event in SecureSumScript(build_params(study)).prices.values()
    ]
    assert all(one.is_zcdp for one in parts)
    assert [(one.is_zcdp, one.claim) for one in seen.observations if not one.is_part] == [
        (False, claim),
        (True, claim),
        *[(False, claim)] * 3,
    ]
    assert {one.first.size for one in seen.observations[:-3]} == {10}


def test_observations_of_a_tree_are_complete(entropy):
    study = STUDIES["paper"]
    seen = observe_study(
        study,
        compute_claim(study),
        compose_sequential(make_audit_plan(study).charges),
        200,
        entropy,
    )
    others = [one for one in seen.observations[:-3] if not one.is_part]
    assert [(one.seen_in, one.first.size) for one in others] == [
        ("all releases", 200),
        ("the data alone", 60),
        ("the number of all rows", 60),
        ("the difference of the counts of two levels", 60),
    ]
    assert not any(one.is_zcdp for one in seen.observations)
    assert seen.description.endswith("60 with data, 1 in full")


def test_default_samples_are_more_if_drawn_together():
    assert choose_samples(STUDIES["sums"]) == pfds.SUM_SAMPLES
    assert {choose_samples(STUDIES[name]) for name in ("paper", "local")} == {pfds.LOCAL_SAMPLES}


def test_combined_tree_has_the_levels_below_the_root():
    params = build_params(STUDIES["paper, categories"])
    first = SplitLevel(np.array([0], np.int16), np.zeros(1))
    assert [level.attributes[0] for level in make_levels(params, [first])] == [0, 2, 1]
