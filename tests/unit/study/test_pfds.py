"""A study of PFDS: which figures go together, what it costs, and what its label says."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from shoal.domain import Numeric
from shoal.errors import SpecError
from shoal.mechanisms.laplace import DiscreteLaplace
from shoal.mechanisms.sensitivity import Histogram
from shoal.messages.base import Array
from shoal.messages.codec import encode
from shoal.privacy.accountant import by_zcdp, sequential
from shoal.privacy.events import Relation, Unit
from shoal.privacy.rounding import show
from shoal.protocols.pfds import local, paper
from shoal.protocols.pfds.messages import Ask, Tables
from shoal.protocols.pfds.params import GRID, Params
from shoal.protocols.pfds.sums import Course, SumScript
from shoal.protocols.pfds.tree import MAX_COUNTS as MAX_LEAF_COUNTS
from shoal.protocols.pfds.tree import depth_of
from shoal.study.conditions_pfds import MAX_COUNTS
from shoal.study.doubts import doubts
from shoal.study.explain import explain
from shoal.study.infer import study_like
from shoal.study.load import parse
from shoal.study.manifest import Manifest
from shoal.study.pfds import params_of
from shoal.study.plan import Plan, make_plan
from shoal.study.price_holders import expected_leaves
from shoal.study.problems import Problem
from shoal.study.rules import default_colluders
from shoal.study.spec import Study
from shoal.study.templates import study_text

NUMBERS: list[dict[str, Any]] = [{"name": name, "range": [0, 120], "missing": False} for name in ("age", "height")]
KIND: dict[str, Any] = {"name": "kind", "values": ["a", "b", "c"], "missing": False}
FEATURES = [*NUMBERS, KIND]
LABEL = {"name": "naps", "values": ["no", "yes"]}
NUMBER = {"name": "naps", "range": [0, 24]}
CLASSES = {"name": "naps", "values": ["never", "rarely", "often", "daily"]}
PERSON = {"person": "patient", "max_rows_per_person": 3}
KEYS = ("max_depth", "n_candidates", "n_levels", "n_buckets", "labelling", "projection", "max_colluders")
PAPER = {"variant": "paper"}
SUMS = {"trust": "secure-sum"}
GAUSS = {**SUMS, "privacy": {"epsilon": 1.2, "delta": 1e-6}}
EVERY = ({}, {"label": NUMBER}, {"label": CLASSES}, SUMS, {**SUMS, "label": NUMBER}, GAUSS, {**GAUSS, "label": CLASSES}, PAPER)
NOW = datetime(2030, 1, 1, tzinfo=UTC)


def document(n_holders: int = 10, minimum: int | None = None, /, **changes: Any) -> dict[str, Any]:
    """A study of so many holders, all of which share; keys of [pfds] and of the top may be given alike."""
    settings = {key: changes.pop(key) for key in KEYS if key in changes}
    base = {
        "title": "Naps",
        "purpose": "Who naps?",
        "contact": "a@example.org",
        "protocol": "pfds",
        "label": LABEL,
        "feature": FEATURES,
        "privacy": {"epsilon": 1.2},
        "participation": {"minimum": n_holders if minimum is None else minimum, "size": 10_000},
        "pfds": {"n_holders": n_holders, **settings},
    }
    return base | changes


def study(*numbers: int, **changes: Any) -> Study:
    return Study(**document(*numbers, **changes))


def plan_of(*numbers: int, **changes: Any) -> Plan:
    return make_plan(study(*numbers, **changes))


def problems(*numbers: int, **changes: Any) -> list[Problem]:
    try:
        study(*numbers, **changes)
    except ValidationError as error:
        return explain(error)
    return []


def problem(*numbers: int, **changes: Any) -> Problem:
    [found] = problems(*numbers, **changes)
    return found


def read(plan: Plan) -> str:
    """The text of the label, without its box."""
    return " ".join(str(plan.statement()).replace("│", " ").split())


def many(n: int) -> list[dict[str, Any]]:
    return [{"name": f"x{i}", "range": [0, 1], "missing": False} for i in range(n)]


class TestDefaults:
    @pytest.mark.parametrize(("n_features", "depth", "levels"), [(2, 2, 2), (3, 3, 3), (5, 5, 4), (8, 8, 4), (14, 8, 4)])
    def test_a_tree_is_as_deep_as_there_are_features_but_no_deeper_than_eight(self, n_features: int, depth: int, levels: int) -> None:
        table = study(**PAPER, feature=many(n_features)).pfds
        assert table is not None and (table.max_depth, table.n_levels, table.n_candidates) == (depth, levels, 10)
        assert (table.labelling, table.projection, table.n_buckets, table.max_colluders) == ("shared", True, None, 0)

    def test_what_is_written_stays(self) -> None:
        table = study(**PAPER, feature=many(14), max_depth=3, n_candidates=7, labelling="own", label=NUMBER, n_buckets=4).pfds
        assert table is not None and (table.max_depth, table.n_levels, table.n_candidates) == (3, 3, 7)
        assert (table.labelling, table.n_buckets) == ("own", 4)
        bare = study(**PAPER, projection=False).pfds
        assert bare is not None and bare.projection is False and bare.n_levels is None

    def test_a_number_is_put_in_ten_buckets_by_the_paper_alone(self) -> None:
        assert study(**PAPER, label=NUMBER).pfds.n_buckets == 10 and study(label=NUMBER).pfds.n_buckets is None  # type: ignore[union-attr]

    def test_plus_has_no_figures_of_trees(self) -> None:
        for more in ({}, SUMS):
            table = study(**more).pfds
            assert table is not None and all(getattr(table, key) is None for key in KEYS[:-1])

    @pytest.mark.parametrize("n", [3, 4, 5, 10, 100, 1000])
    def test_a_third_may_collude(self, n: int) -> None:
        assert study(n, **SUMS).pfds.max_colluders == default_colluders(n)  # type: ignore[union-attr]

    def test_there_is_one_form_of_a_manifest(self) -> None:
        made = study(**PAPER, label=NUMBER)
        written = {"max_depth": 3, "n_levels": 3, "n_candidates": 10, "n_buckets": 10, "labelling": "shared", "projection": True}
        assert Manifest(made).digest == Manifest(study(**PAPER, label=NUMBER, **written)).digest
        assert all(Study.from_content(study(**more).content()) == study(**more) for more in EVERY)

    @pytest.mark.parametrize(
        ("key", "value", "code"),
        [("max_depth", 1, "SPEC-013"), ("max_depth", "8", "SPEC-012"), ("projection", 1, "SPEC-012"), ("labelling", "all", "SPEC-013")],
    )
    def test_a_strange_value_is_only_that(self, key: str, value: Any, code: str) -> None:
        found = problem(**PAPER, **{key: value})
        assert (found.code, found.path) == (code, ("pfds", key))
        assert {one.path[0] for one in problems(**PAPER, feature="age")} == {"feature"}
        assert {one.path[0] for one in problems(**PAPER, label="naps")} == {"label"}


class TestConditions:
    @pytest.mark.parametrize("key", KEYS[:-1])
    def test_keys_of_trees_belong_to_the_paper(self, key: str) -> None:
        value = {"labelling": "own", "projection": True}.get(key, 2)
        found = problem(**{key: value})
        assert (found.code, found.path) == ("SPEC-022", ("pfds", key))
        assert found.what == f"{key} belongs to the trees of the paper's variant; plus has none."
        assert found.fix == f'Remove {key}, or variant = "paper"'

    def test_buckets_are_of_a_number(self) -> None:
        found = problem(**PAPER, n_buckets=10)
        assert (found.code, found.path) == ("SPEC-022", ("pfds", "n_buckets"))
        assert found.what == "n_buckets has a meaning for a numeric label only."

    def test_levels_are_counted_for_the_projection(self) -> None:
        found = problem(**PAPER, projection=False, n_levels=2)
        assert (found.code, found.path, found.fix) == ("SPEC-022", ("pfds", "n_levels"), "Remove n_levels, or projection = true")

    def test_free_counts_are_not_asked_where_data_is_released(self) -> None:
        for more in ({}, SUMS, PAPER):
            found = problem(**more, queries={"features": ["kind"], "n_queries": 1, "epsilon_release": 0.1})
            assert (found.code, found.path) == ("SPEC-022", ("queries",))
            assert found.what == "[queries] has no meaning for pfds: what it releases is data, on which everyone may count without asking."
            assert found.fix == "Remove [queries], and count on the release."

    def test_a_tree_is_no_deeper_than_there_are_attributes(self) -> None:
        found = problem(**PAPER, max_depth=4)
        assert (found.code, found.path, found.fix) == ("SPEC-021", ("pfds", "max_depth"), "max_depth = 3")
        assert found.what == "max_depth = 4, but there are 3 features. PFDS Algorithm 3: h_max <= |A|."
        alone = problem(**PAPER, feature=[KIND])
        assert alone.what.startswith("max_depth = 2, but there is 1 feature.") and alone.fix == 'Add a feature, or variant = "plus"'

    def test_no_more_levels_are_counted_than_a_tree_has(self) -> None:
        found = problem(**PAPER, max_depth=2, n_levels=3)
        assert (found.code, found.path, found.fix) == ("SPEC-021", ("pfds", "n_levels"), "n_levels = 2")
        assert found.what == "n_levels = 3, but a tree has max_depth = 2 levels. PFDS Algorithm 5: p <= h_T."

    def test_a_number_that_may_be_missing_cannot_be_split(self) -> None:
        found = problem(**PAPER, feature=[NUMBERS[0], {"name": "height", "range": [0, 3]}, KIND | {"missing": True}])
        assert (found.code, found.path) == ("SPEC-021", ("feature", 1, "missing"))
        assert found.what == (
            "height is a number that may be missing; in the paper's trees a missing number is on neither side of a split."
        )
        assert found.fix == 'missing = false, if no row lacks it; or variant = "plus"'
        assert problems(feature=[{"name": "height", "range": [0, 3]}]) == []

    def test_bins_are_not_split_on(self) -> None:
        found = problem(**PAPER, feature=[NUMBERS[0] | {"bins": [30]}, KIND])
        assert (found.code, found.path, found.fix) == ("SPEC-022", ("feature", 0, "bins"), 'Remove bins, or variant = "plus"')
        assert problems(feature=[NUMBERS[0] | {"bins": [30]}, KIND]) == []

    def test_a_split_that_makes_too_many_leaves_makes_no_tree(self) -> None:
        wide = [{"name": name, "values": [str(i) for i in range(2_000)], "missing": False} for name in "xy"]
        classes = {"name": "naps", "values": [str(i) for i in range(MAX_LEAF_COUNTS // 2_000 + 1)]}
        found = problem(**PAPER, feature=wide, label=classes)
        assert (found.code, found.path) == ("SPEC-021", ("feature",)) and f"for each of {len(classes['values']):,} classes" in found.what
        assert problems(**PAPER, feature=wide, label={**classes, "values": classes["values"][:-1]}) == []

    def test_colluders_have_no_meaning_where_everyone_may_be_one(self) -> None:
        for more in ({}, PAPER):
            found = problem(**more, max_colluders=1)
            assert (found.code, found.path, found.fix) == ("SPEC-022", ("pfds", "max_colluders"), "Remove max_colluders.")

    @pytest.mark.parametrize("n", [3, 4, 5, 10])
    def test_two_lists_of_survivors_always_have_an_honest_signer_in_common(self, n: int) -> None:
        for c in range(n + 1):
            for minimum in range(1, n + 1):
                assert (problems(n, minimum, max_colluders=c, **SUMS) == []) == (2 * minimum - n > c)

    def test_the_sentence_is_that_of_sdq(self) -> None:
        ours = problem(10, 7, **SUMS)
        settings = {"protocol": "sdq", "pfds": None, "sdq": {"n_databases": 10}}
        theirs = problem(10, 7, **settings)
        assert ours.what == theirs.what.replace("databases", "holders") and "n_holders + max_colluders" in ours.what
        assert (ours.code, ours.path, ours.fix) == (theirs.code, theirs.path, theirs.fix)
        assert ours.fix == "minimum = 8, or max_colluders = 3"

    def test_a_sum_has_three_members_at_least_and_a_thousand_at_most(self) -> None:
        few, crowd = problem(2, **SUMS), problem(1001, **SUMS)
        assert (few.code, few.path, few.fix) == ("SPEC-021", ("pfds", "n_holders"), "n_holders = 3")
        assert few.what == "n_holders = 2: from the sum and its own counts each of two holders knows the other's."
        assert (crowd.path, crowd.fix) == (("pfds", "n_holders"), "n_holders = 1000") and "at most 1,000 members" in crowd.what
        assert problems(1) == problems(2) == problems(10_000) == problems(3, **SUMS) == problems(1000, **SUMS) == []

    def test_no_more_share_than_there_are(self) -> None:
        for more in ({}, SUMS, PAPER):
            found = problem(10, 11, **more)
            assert (found.code, found.path, found.fix) == ("SPEC-021", ("participation", "minimum"), "minimum = 10")
            assert found.what == "minimum = 11, but there are 10 holders."

    def test_a_delta_goes_with_sums_only(self) -> None:
        assert problems(**GAUSS) == []
        for more in ({}, PAPER):
            found = problem(**more, privacy=GAUSS["privacy"])
            assert (found.code, found.path) == ("SPEC-022", ("privacy", "delta"))

    def test_a_text_is_not_counted(self) -> None:
        assert problem(feature=[KIND, {"name": "note", "buckets": 64}]).path == ("feature", 1, "buckets")

    def test_all_tables_travel_together(self) -> None:
        wide = [{"name": f"x{i}", "values": [str(v) for v in range(1_000)], "missing": False} for i in range(50)]
        for more in ({}, SUMS):
            assert problems(**more, feature=wide) == []
            found = problem(**more, feature=[*wide, KIND])
            assert (found.code, found.path) == ("SPEC-021", ("feature",))
            assert found.what == "The tables of 51 features and the label have 100,006 counts; at most 100,000 can travel together."
        assert problems(**PAPER, feature=[*wide, KIND]) == []

    def test_messages_bear_as_many_counts_as_there_may_be(self) -> None:
        whole, half = Array.of(np.zeros(MAX_COUNTS, np.int64)), Array.of(np.zeros(MAX_COUNTS // 2, np.int64))
        course = Course(step=9, weights=half, intercept=1 << 40, direction=half, reaches=(1 << 50, 1 << 50))
        assert len(encode(Ask(study=bytes(32), round=9, course=course))) <= Ask.max_bytes
        assert len(encode(Tables(study=bytes(32), counts=whole))) <= Tables.max_bytes


class TestParams:
    def test_the_study_reaches_the_parameters(self) -> None:
        made = study(12, 11, **SUMS, max_colluders=3, data=PERSON, privacy={"epsilon": 0.5, "delta": 1e-7})
        assert params_of(made) == Params(
            made.schema(),
            0.5,
            10_000,
            delta=1e-7,
            n_holders=12,
            minimum=11,
            max_colluders=3,
            trust="secure-sum",
            unit="person",
            max_rows=3,
        )
        assert params_of(made).n_honest == 8

    def test_the_papers_figures_reach_them_too(self) -> None:
        made = study(**PAPER, label=NUMBER, max_depth=2, n_candidates=5, n_levels=2, n_buckets=7, labelling="own")
        found = params_of(made)
        assert (found.variant, found.trust, found.n_honest, found.unit) == ("paper", "local", 1, "record")
        assert (found.max_depth, found.n_candidates, found.n_levels, found.n_buckets, found.labelling) == (2, 5, 2, 7, "own")
        assert found.projection and not params_of(study(**PAPER, projection=False)).projection and found.n_outcomes == 7
        assert isinstance(found.label, Numeric)


class TestPrice:
    @pytest.mark.parametrize("more", EVERY)
    def test_all_of_epsilon_is_spent_and_no_more(self, more: dict[str, Any]) -> None:
        plan = plan_of(**more)
        assert 1.2 - 1e-6 <= plan.loss.epsilon <= 1.2 and plan.loss.delta == plan.study.privacy.delta
        assert plan.loss.scope == params_of(plan.study).scope and plan.loss.scope.relation is Relation.ADD_REMOVE
        assert plan.charges == plan.events and all(event.reads == ("age", "height", "kind", "naps") for event in plan.events)

    @pytest.mark.parametrize("epsilon", [0.1, 0.7, 1.0, 64.0])
    def test_pure_budgets_are_spent_to_the_last_grain(self, epsilon: float) -> None:
        for more in ({}, {**SUMS, "label": CLASSES}, {**PAPER, "max_depth": 2}):
            assert plan_of(**more, privacy={"epsilon": epsilon}).loss.epsilon == epsilon
        assert plan_of(**SUMS, privacy={"epsilon": epsilon}).loss.epsilon == pytest.approx(epsilon, abs=1e-10)

    @pytest.mark.parametrize("more", EVERY)
    def test_a_ledger_is_charged_what_the_protocol_says(self, more: dict[str, Any]) -> None:
        plan = plan_of(**more)
        params = params_of(plan.study)
        if params.variant == "paper":
            prices = list(paper.prices(params).values())
        else:
            prices = [local.price(params)] if params.trust == "local" else list(SumScript(params).prices.values())
        assert plan.events == prices

    def test_half_goes_to_the_tree_and_half_to_the_counts(self) -> None:
        plan = plan_of(**PAPER, feature=many(8), max_depth=6, privacy={"epsilon": 1.2})
        assert [(release.name, release.count, release.event.epsilon, release.event.mechanism) for release in plan.releases] == [
            ("the choice of split values of a level", 5, 0.1, "exponential"),
            ("the classes in the leaves", 1, 0.1, "discrete-laplace"),
            ("the number of records in the nodes of a level", 3, 0.2, "discrete-laplace"),
        ]
        assert plan.loss.epsilon == 1.2

    def test_without_the_projection_half_is_left_and_that_is_said(self) -> None:
        plan = plan_of(**PAPER, projection=False)
        assert plan.loss.epsilon == 0.6 and [release.count for release in plan.releases] == [2, 1]
        assert plan.notes == ("Without the projection no level is counted: half of the study's epsilon, which is for that, is not spent.",)
        assert "are in the nodes of" not in plan.statement().leaves

    @pytest.mark.parametrize(("epsilon", "holders", "q"), [(1.0, 10, 3), (0.1, 100, 1), (1.0, 1000, 1), (1.0, 2, 3), (0.1, 4, 2)])
    def test_local_tables_are_one_release(self, epsilon: float, holders: int, q: int) -> None:
        plan = plan_of(holders, 2, privacy={"epsilon": epsilon}, participation={"minimum": 2, "size": 2_000})
        [release] = plan.releases
        assert release.name == f"tables of {q} attribute{'s' if q > 1 else ''} and the label"
        assert (release.count, release.event.mechanism, release.event.epsilon) == (1, "discrete-laplace", epsilon)
        assert release.event.parameters["sensitivity"] == 256 * q

    @pytest.mark.parametrize(("size", "n_rounds"), [(10**6, 6), (10_000, 3), (100, 0)])
    def test_sums_are_named_and_rounds_are_counted(self, size: int, n_rounds: int) -> None:
        plan = plan_of(10, **GAUSS, participation={"minimum": 10, "size": size})
        names = ["sums of the tables of all attributes and the label", "sums of a table of scores"]
        names += ["sums of residuals", "sums of a second table of scores"] if n_rounds else []
        assert [release.name for release in plan.releases] == names
        assert [release.count for release in plan.releases] == [1, 1, n_rounds, 1] if n_rounds else [1, 1]
        assert {release.event.mechanism for release in plan.releases} == {"gaussian-shares"}

    @pytest.mark.parametrize("privacy", [{"epsilon": 1.0, "delta": 1e-6}, {"epsilon": 0.1, "delta": 1e-9}, {"epsilon": 8.0, "delta": 0.01}])
    @pytest.mark.parametrize("size", [10**6, 10_000, 100])
    def test_gaussian_sums_keep_to_epsilon_and_delta_together(self, privacy: dict[str, float], size: int) -> None:
        plan = plan_of(10, **SUMS, privacy=privacy, participation={"minimum": 10, "size": size})
        assert plan.loss == by_zcdp(plan.events, privacy["delta"])
        assert privacy["epsilon"] * (1 - 1e-5) <= plan.loss.epsilon <= privacy["epsilon"] and plan.loss.delta == privacy["delta"]
        assert sequential(plan.charges).delta <= privacy["delta"]

    def test_the_plain_sum_of_a_ledger_stands_beside_it(self) -> None:
        plan = plan_of(**GAUSS)
        charged = sequential(plan.charges)
        assert charged.epsilon > 2 * plan.loss.epsilon
        figures = f"epsilon {show(charged.epsilon)}, delta {show(charged.delta)}"
        assert plan.notes == (f"Your ledger adds up plainly: {figures}. What is guaranteed is the zero-concentrated sum.",)
        assert f"plain sum of all releases, which is what your ledger counts: {figures}" in read(plan)
        assert plan.to_dict()["charged"] == charged.to_dict() and plan.to_dict()["total"] == plan.loss.to_dict()
        # One release is its own sum.
        assert plan_of(**GAUSS, label=CLASSES).notes == () == plan_of(**SUMS).notes

    def test_a_person_with_several_rows_needs_more_noise_for_the_same_price(self) -> None:
        for more in ({}, SUMS, PAPER):
            one, three = (plan_of(**more, data={"person": "p", "max_rows_per_person": rows}) for rows in (1, 3))
            assert one.loss.epsilon == three.loss.epsilon and three.loss.scope.unit is Unit.PERSON
            assert three.forecasts[0].value == pytest.approx(3 * one.forecasts[0].value, rel=1e-2)
            assert three.notes[0].startswith("At most 3 rows of a person are used in each database; someone in k of the databases spends")

    @pytest.mark.parametrize("more", [SUMS, PAPER])
    def test_a_budget_too_small_for_its_parts_is_refused(self, more: dict[str, Any]) -> None:
        with pytest.raises(SpecError) as error:
            plan_of(**more, privacy={"epsilon": 1e-9})
        assert error.value.code == "PLAN-001" and "whose epsilon is 1e-09 in all, cannot be made" in error.value.what

    def test_a_delta_too_small_for_its_parts_is_refused(self) -> None:
        with pytest.raises(SpecError) as error:
            plan_of(**SUMS, privacy={"epsilon": 1.0, "delta": 1e-100})
        assert error.value.code == "PLAN-001" and "whose epsilon is 1.0 in all, and its delta 1e-100, cannot be made" in error.value.what


class TestForecast:
    def test_local_tables_add_up_the_noise_of_their_holders(self) -> None:
        plan = plan_of()
        params = params_of(plan.study)
        noise = DiscreteLaplace(1.2, Histogram(3, GRID), params.scope)
        assert plan.forecasts[0].value == pytest.approx(math.sqrt(10 * noise.variance()) / GRID / 10_000)
        # Each of three tables is answered by a third of 300 holders, with a third of the noise and of the rows.
        third = plan_of(300, participation={"minimum": 10, "size": 10_000}).forecasts[0].value
        assert third == pytest.approx(math.sqrt(100) * math.sqrt(2) / 1.2 / (10_000 / 3), rel=1e-3)

    @pytest.mark.parametrize("more", [SUMS, GAUSS])
    def test_sums_carry_the_shares_of_all_holders(self, more: dict[str, Any]) -> None:
        plan = plan_of(10, 9, **more, max_colluders=3)
        mechanism = SumScript(params_of(plan.study)).mechanism("tables")
        assert mechanism is not None and plan.forecasts[0].value == math.sqrt(mechanism.variance(10)) / GRID / 10_000

    def test_a_larger_population_is_forecast_to_be_more_exact(self) -> None:
        for more in ({}, SUMS, GAUSS):
            small, large = (
                plan_of(10, **more, participation={"minimum": 10, "size": size}).forecasts[0].value for size in (1_000, 100_000)
            )
            assert large < small / 5

    def test_too_few_rows_are_doubted(self) -> None:
        for more in ({}, SUMS, GAUSS):
            assert doubts(plan_of(**more), NOW) == ()
            [doubt] = doubts(plan_of(10, **more, participation={"minimum": 10, "size": 25}), NOW)
            assert "At the declared size most of the result is noise: noise on one cell of a pooled table" in doubt
            # kind has three cells, and each has two classes.
            assert doubt.endswith("a result is of use below 0.0834. Ask for more participants, or for a larger epsilon.")

    def test_the_papers_trees_are_said_to_be_noise_where_they_are(self) -> None:
        plan = plan_of(100, **PAPER, feature=many(14), participation={"minimum": 100, "size": 44_000}, privacy={"epsilon": 1.0})
        [doubt] = doubts(plan, NOW)
        # 440 rows of a holder fall in 128 leaves; the noise is that of 16 parts of epsilon.
        assert "where an average leaf of a tree of 8 levels holds 3.4 records is 22.7; a result is of use below 0.86." in doubt
        assert (
            "The paper's trees are mostly noise at such figures: on census data (Adult) they end at the error of always guessing" in doubt
        )
        assert doubt.endswith('variant = "plus" learns more for the same epsilon.') and "(errata P-01)" in doubt
        assert doubts(plan_of(2, **PAPER, feature=many(2), participation={"minimum": 2, "size": 44_000}), NOW) == ()

    @pytest.mark.parametrize(
        ("n_numbers", "arities", "depth"), [(2, (), 2), (1, (3,), 2), (2, (3, 5, 2), 4), (0, (2, 3, 4, 5), 4), (3, (7,), 4)]
    )
    def test_leaves_are_those_of_all_draws_of_attributes(self, n_numbers: int, arities: tuple[int, ...], depth: int) -> None:
        def leaves(level: int, left: tuple[int, ...]) -> float:
            """Exactly, by drawing every attribute that is left."""
            if level == depth:
                return 1.0
            stay = n_numbers * 2 * leaves(level + 1, left)
            gone = sum(arity * leaves(level + 1, left[:i] + left[i + 1 :]) for i, arity in enumerate(left))
            return (stay + gone) / (n_numbers + len(left))

        categories = [{"name": f"c{i}", "values": [str(v) for v in range(n)], "missing": False} for i, n in enumerate(arities)]
        params = params_of(study(**PAPER, feature=[*many(n_numbers), *categories], max_depth=depth))
        assert expected_leaves(params) == pytest.approx(leaves(1, arities))

    def test_no_tree_has_more_leaves_than_can_be_counted(self) -> None:
        wide = [{"name": f"c{i}", "values": [str(v) for v in range(99)], "missing": False} for i in range(20)]
        params = params_of(study(**PAPER, feature=[*many(1), *wide]))
        assert expected_leaves(params) == MAX_LEAF_COUNTS // 2
        deep = plan_of(**PAPER, feature=wide)
        n_levels = depth_of(params_of(deep.study))
        assert n_levels < 8 and deep.statement().leaves.startswith(f"a tree of {n_levels} levels:") and deep.loss.epsilon <= 1.2


class TestLabel:
    def test_local_tables_leave_with_their_noise(self) -> None:
        label = plan_of().statement()
        # Of age, height and kind 8, 8 and 3 cells, each with two classes.
        assert label.leaves == (
            "tables of the label and 3 attributes of 3, in all up to 38 counts of your database's rows, each blurred by noise (at most 304 "
            "bytes); no row"
        )
        some = plan_of(100, privacy={"epsilon": 0.1}).statement().leaves
        assert some.startswith("tables of the label and 1 attribute of 3, in all up to 16 counts of your database's rows")
        assert label.seen_by == "all who read the release: the tables, and the model and the made-up rows that follow from them"
        assert label.rests_on == () and label.scope.adversary == "all who read the release" and label.colluders is None
        assert "pfds, local: what leaves is already private; nobody has to be trusted" in read(plan_of())

    def test_sums_leave_under_a_mask(self) -> None:
        label = plan_of(10, 9, **SUMS, max_colluders=3).statement()
        script = SumScript(params_of(study(10, 9, **SUMS, max_colluders=3)))
        n = sum(map(script.size, script.questions))
        assert label.leaves.startswith(
            f"{n} numbers counted from your database's rows, each under a mask (at most {8 * n:,} bytes, besides keys"
        )
        assert label.leaves.endswith("only sums over the holders that answer can be read, with noise in them; no row")
        assert label.seen_by.startswith("the coordinator sees masked numbers and their sums with the noise; all who read the release see")
        assert label.rests_on == (
            "for the sums: that at most 3 of the 10 holders side with those who read the sums; the coordinator may do what it likes",
            "where more than 1 of the 10 holders drop out, the study ends without a result; what was sent stays spent",
        )
        text = read(plan_of(10, 9, **SUMS, max_colluders=3))
        assert "pfds, secure-sum: only sums can be read, as long as at most 3 of the 10 holders work together against you" in text
        assert "against all who read the sums or the release, and up to 3 colluding holders" in text and "databases work" not in text

    def test_where_nobody_is_to_collude_the_others_are_named(self) -> None:
        plan = plan_of(**SUMS, max_colluders=0)
        assert "as long as none of the other 9 holders helps those who read the sums against you" in read(plan)
        needs, gone = plan.statement().rests_on
        assert "that none of the 10 holders side with" in needs and gone.startswith("where any of the 10 holders drops out,")
        assert plan.loss.scope.adversary == "all who read the sums or the release and hold none of the data"
        known = "the other holders: each knows its own share of the noise, and less protects you from it; max_colluders = 1 covers that"
        assert known in plan.statement().not_covered and known not in plan_of(**SUMS).statement().not_covered
        assert known not in plan_of().statement().not_covered

    def test_the_papers_trees_leave_and_are_passed_on(self) -> None:
        label = plan_of(**PAPER).statement()
        assert label.leaves == (
            "a tree of 3 levels: its split values, chosen at random by how well they split your rows, and the classes in its leaves, "
            "counted and blurred by noise; how many rows are in the nodes of 2 levels, blurred too; and made-up rows drawn from these; no "
            "row of your database"
        )
        assert label.seen_by == "all holders, and everyone else who reads the release: it is made to be passed on"
        assert label.rests_on == () and label.bytes is None

    @pytest.mark.parametrize("more", EVERY)
    def test_what_no_release_protects(self, more: dict[str, Any]) -> None:
        found = plan_of(**more).statement().not_covered
        assert "the model that you train at home: your own rows are in it, and it must not be published or lent out" in found
        assert "how many holders there are and the declared size, which are public" in found
        assert "that another holder counts truly: one that lies spoils the release, and nobody can tell" in found
        assert "that your organisation takes part, and what its records have in common" in found
        assert "rows of the same person in other databases, each of which spends for itself" in found

    def test_it_speaks_about_the_persons_in_the_rows(self) -> None:
        text = read(plan_of(data=PERSON))
        assert "everything that this database holds about one person (at most 3 rows are used; unit: person)" in text
        assert "someone in k of the databases: k times this epsilon" in text and "likely that a certain person is in the data" in text

    @pytest.mark.parametrize("more", EVERY)
    def test_plain_data_says_the_same(self, more: dict[str, Any]) -> None:
        plan = plan_of(**more)
        label, whole = plan.statement(digest="7f3a-91c2-0be4").to_dict(), plan.to_dict()
        assert json.loads(json.dumps({"label": label, "plan": whole}, allow_nan=False)) == {"label": label, "plan": whole}
        assert label["epsilon"] == plan.loss.epsilon and label["delta"] == plan.loss.delta and label["max_rows"] == 1
        assert label["releases"] == whole["releases"] and label["plain_sum"] == sequential(plan.charges).epsilon


class TestStarter:
    @pytest.mark.parametrize("trust", ["local", "secure-sum"])
    def test_its_trust_may_be_changed_alone(self, trust: str) -> None:
        plan = make_plan(parse(study_text("pfds").replace('trust = "local"', f'trust = "{trust}"')))
        assert plan.study.trust == trust and plan.loss.epsilon == pytest.approx(1.0, abs=1e-9) and doubts(plan, NOW) == ()

    @pytest.mark.parametrize("labels", [np.arange(200) * 1.5, np.array(list("abcdefg") * 29)[:200]], ids=["number", "classes"])
    def test_a_study_with_the_columns_of_a_table_has_a_price(self, labels: np.ndarray) -> None:
        text, _ = study_like({"age": np.arange(200) % 70, "kind": np.array(["x", "y"] * 100), "target": labels}, "pfds")
        plan = make_plan(parse(text))
        assert plan.loss.epsilon == 1.0 and "PRIVACY LABEL" in str(plan.statement())
