"""A study of PFDS: which figures go together, what it costs, and what its label says."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from shoal.data.schema import Numeric
from shoal.errors import SpecError
from shoal.mechanisms.laplace import DiscreteLaplace
from shoal.mechanisms.sensitivity import CellCounts
from shoal.messages.base import Array
from shoal.messages.codec import encode
from shoal.privacy.accountant import compose_sequential, compose_zcdp, rho_to_epsilon
from shoal.privacy.events import Relation, Unit
from shoal.privacy.rounding import format_epsilon, from_grains, grains_up
from shoal.protocols.pfds import tables
from shoal.protocols.pfds.analysis import compute_expected_leaves
from shoal.protocols.pfds.messages import HolderTables, PFDSAsk, PFDSScriptState
from shoal.protocols.pfds.paper import script as paper
from shoal.protocols.pfds.paper.tree import MAX_COUNTS as MAX_LEAF_COUNTS
from shoal.protocols.pfds.paper.tree import compute_depth
from shoal.protocols.pfds.params import GRID, PFDSParams
from shoal.protocols.pfds.script import SecureSumScript
from shoal.study.constraints import StudyProblem, compute_default_colluders
from shoal.study.explain import explain
from shoal.study.loader import parse_study_text
from shoal.study.manifest import Manifest
from shoal.study.pfds import MAX_COUNTS, build_params
from shoal.study.plan import Plan, find_warnings, make_plan
from shoal.study.spec import Study
from shoal.study.starters import read_starter
from shoal.study.starters.infer import infer_study
from shoal.study.validation import parse_content, parse_study

NUMBERS: list[dict[str, Any]] = [
    {"name": name, "range": [0, 120], "missing": False} for name in ("age", "height")
]
KIND: dict[str, Any] = {"name": "kind", "values": ["a", "b", "c"], "missing": False}
FEATURES = [*NUMBERS, KIND]
LABEL = {"name": "naps", "values": ["no", "yes"]}
NUMBER = {"name": "naps", "range": [0, 24]}
CLASSES = {"name": "naps", "values": ["never", "rarely", "often", "daily"]}
PERSON = {"person": "patient", "max_rows_per_person": 3}
KEYS = (
    "max_depth",
    "n_candidates",
    "n_levels",
    "n_buckets",
    "labelling",
    "projection",
    "max_colluders",
)
PAPER = {"variant": "paper"}
SUMS = {"trust": "secure-sum"}
GAUSS = {**SUMS, "privacy": {"epsilon": 1.2, "delta": 1e-6}}
EVERY = (
    {},
    {"label": NUMBER},
    {"label": CLASSES},
    SUMS,
    {**SUMS, "label": NUMBER},
    GAUSS,
    {**GAUSS, "label": CLASSES},
    PAPER,
)
NOW = datetime(2030, 1, 1, tzinfo=UTC)


def make_document(
    n_holders: int = 10, minimum: int | None = None, /, **changes: Any
) -> dict[str, Any]:
    """Return a study in which all holders share; changes may be keys of [pfds] or of the top."""
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


def make_study(*numbers: int, **changes: Any) -> Study:
    return parse_study(make_document(*numbers, **changes))


def plan_study(*numbers: int, **changes: Any) -> Plan:
    return make_plan(make_study(*numbers, **changes))


def find_problems(*numbers: int, **changes: Any) -> list[StudyProblem]:
    try:
        make_study(*numbers, **changes)
    except ValidationError as error:
        return explain(error)
    return []


def find_problem(*numbers: int, **changes: Any) -> StudyProblem:
    [found] = find_problems(*numbers, **changes)
    return found


def read_label(plan: Plan) -> str:
    """Return the text of the label without its box."""
    return " ".join(str(plan.make_statement()).replace("│", " ").split())


def make_numbers(n: int) -> list[dict[str, Any]]:
    return [{"name": f"x{i}", "range": [0, 1], "missing": False} for i in range(n)]


class TestDefaults:
    @pytest.mark.parametrize(
        ("n_features", "depth", "levels"), [(2, 2, 2), (3, 3, 3), (5, 5, 4), (8, 8, 4), (14, 8, 4)]
    )
    def test_default_depth_is_number_of_features_up_to_eight(
        self, n_features: int, depth: int, levels: int
    ) -> None:
        table = make_study(**PAPER, feature=make_numbers(n_features)).pfds
        assert table is not None and (table.max_depth, table.n_levels, table.n_candidates) == (
            depth,
            levels,
            10,
        )
        assert (table.labelling, table.projection, table.n_buckets, table.max_colluders) == (
            "shared",
            True,
            None,
            0,
        )

    def test_written_values_are_kept(self) -> None:
        table = make_study(
            **PAPER,
            feature=make_numbers(14),
            max_depth=3,
            n_candidates=7,
            labelling="own",
            label=NUMBER,
            n_buckets=4,
        ).pfds
        assert table is not None and (table.max_depth, table.n_levels, table.n_candidates) == (
            3,
            3,
            7,
        )
        assert (table.labelling, table.n_buckets) == ("own", 4)
        bare = make_study(**PAPER, projection=False).pfds
        assert bare is not None and bare.projection is False and bare.n_levels is None

    def test_only_paper_puts_numbers_in_ten_buckets_by_default(self) -> None:
        assert (
            make_study(**PAPER, label=NUMBER).pfds.n_buckets == 10
            and make_study(label=NUMBER).pfds.n_buckets is None
        )  # type: ignore[union-attr]

    def test_plus_has_no_settings_of_trees(self) -> None:
        for more in ({}, SUMS):
            table = make_study(**more).pfds
            assert table is not None and all(getattr(table, key) is None for key in KEYS[:-1])

    @pytest.mark.parametrize("n", [3, 4, 5, 10, 100, 1000])
    def test_default_colluders_follow_number_of_holders(self, n: int) -> None:
        assert make_study(n, **SUMS).pfds.max_colluders == compute_default_colluders(n)  # type: ignore[union-attr]

    def test_written_defaults_do_not_change_the_digest(self) -> None:
        made = make_study(**PAPER, label=NUMBER)
        written = {
            "max_depth": 3,
            "n_levels": 3,
            "n_candidates": 10,
            "n_buckets": 10,
            "labelling": "shared",
            "projection": True,
        }
        assert (
            Manifest(made).digest == Manifest(make_study(**PAPER, label=NUMBER, **written)).digest
        )
        assert all(
            parse_content(make_study(**more).to_content()) == make_study(**more) for more in EVERY
        )

    @pytest.mark.parametrize(
        ("key", "value", "code"),
        [
            ("max_depth", 1, "SPEC-013"),
            ("max_depth", "8", "SPEC-012"),
            ("projection", 1, "SPEC-012"),
            ("labelling", "all", "SPEC-013"),
        ],
    )
    def test_invalid_value_gives_one_problem_only(self, key: str, value: Any, code: str) -> None:
        found = find_problem(**PAPER, **{key: value})
        assert (found.code, found.path) == (code, ("pfds", key))
        assert {one.path[0] for one in find_problems(**PAPER, feature="age")} == {"feature"}
        assert {one.path[0] for one in find_problems(**PAPER, label="naps")} == {"label"}


class TestConditions:
    @pytest.mark.parametrize("key", KEYS[:-1])
    def test_plus_rejects_settings_of_trees(self, key: str) -> None:
        value = {"labelling": "own", "projection": True}.get(key, 2)
        found = find_problem(**{key: value})
        assert (found.code, found.path) == ("SPEC-022", ("pfds", key))
        assert (
            found.what == f"{key} belongs to the trees of the paper's variant; plus has no trees."
        )
        assert found.fix == f'Remove {key}, or variant = "paper"'

    def test_n_buckets_needs_a_numeric_label(self) -> None:
        found = find_problem(**PAPER, n_buckets=10)
        assert (found.code, found.path) == ("SPEC-022", ("pfds", "n_buckets"))
        assert found.what == "n_buckets has a meaning for a numeric label only."

    def test_n_levels_needs_the_projection(self) -> None:
        found = find_problem(**PAPER, projection=False, n_levels=2)
        assert (found.code, found.path, found.fix) == (
            "SPEC-022",
            ("pfds", "n_levels"),
            "Remove n_levels, or projection = true",
        )

    def test_pfds_rejects_free_counts(self) -> None:
        for more in ({}, SUMS, PAPER):
            found = find_problem(
                **more, queries={"features": ["kind"], "n_queries": 1, "epsilon_release": 0.1}
            )
            assert (found.code, found.path) == ("SPEC-022", ("queries",))
            assert (
                found.what
                == "[queries] has no meaning for pfds: it releases data, in which everyone may "
                "count freely."
            )
            assert found.fix == "Remove [queries], and count in the release."

    def test_max_depth_is_at_most_number_of_features(self) -> None:
        found = find_problem(**PAPER, max_depth=4)
        assert (found.code, found.path, found.fix) == (
            "SPEC-021",
            ("pfds", "max_depth"),
            "max_depth = 3",
        )
        assert (
            found.what == "max_depth = 4, but there are 3 features. PFDS Algorithm 3: h_max <= |A|."
        )
        alone = find_problem(**PAPER, feature=[KIND])
        assert (
            alone.what.startswith("max_depth = 2, but there is 1 feature.")
            and alone.fix == 'Add a feature, or variant = "plus"'
        )

    def test_n_levels_is_at_most_max_depth(self) -> None:
        found = find_problem(**PAPER, max_depth=2, n_levels=3)
        assert (found.code, found.path, found.fix) == (
            "SPEC-021",
            ("pfds", "n_levels"),
            "n_levels = 2",
        )
        assert (
            found.what
            == "n_levels = 3, but a tree has max_depth = 2 levels. PFDS Algorithm 5: p <= h_T."
        )

    def test_paper_rejects_numbers_that_may_be_missing(self) -> None:
        found = find_problem(
            **PAPER,
            feature=[NUMBERS[0], {"name": "height", "range": [0, 3]}, KIND | {"missing": True}],
        )
        assert (found.code, found.path) == ("SPEC-021", ("feature", 1, "missing"))
        assert found.what == (
            "height is a number that may be missing. In the paper's trees a missing number is on "
            "neither side of a split."
        )
        assert found.fix == 'missing = false, if every row has it; or variant = "plus"'
        assert find_problems(feature=[{"name": "height", "range": [0, 3]}]) == []

    def test_paper_rejects_bins(self) -> None:
        found = find_problem(**PAPER, feature=[NUMBERS[0] | {"bins": [30]}, KIND])
        assert (found.code, found.path, found.fix) == (
            "SPEC-022",
            ("feature", 0, "bins"),
            'Remove bins, or variant = "plus"',
        )
        assert find_problems(feature=[NUMBERS[0] | {"bins": [30]}, KIND]) == []

    def test_paper_rejects_splits_with_too_many_leaves(self) -> None:
        wide = [
            {"name": name, "values": [str(i) for i in range(2_000)], "missing": False}
            for name in "xy"
        ]
        classes = {"name": "naps", "values": [str(i) for i in range(MAX_LEAF_COUNTS // 2_000 + 1)]}
        found = find_problem(**PAPER, feature=wide, label=classes)
        assert (found.code, found.path) == (
            "SPEC-021",
            ("feature",),
        ) and f"for each of {len(classes['values']):,} classes" in found.what
        assert (
            find_problems(
                **PAPER, feature=wide, label={**classes, "values": classes["values"][:-1]}
            )
            == []
        )

    def test_max_colluders_needs_secure_sums(self) -> None:
        for more in ({}, PAPER):
            found = find_problem(**more, max_colluders=1)
            assert (found.code, found.path, found.fix) == (
                "SPEC-022",
                ("pfds", "max_colluders"),
                "Remove max_colluders.",
            )

    @pytest.mark.parametrize("n", [3, 4, 5, 10])
    def test_minimum_ensures_a_common_honest_signer(self, n: int) -> None:
        for c in range(n + 1):
            for minimum in range(1, n + 1):
                assert (find_problems(n, minimum, max_colluders=c, **SUMS) == []) == (
                    2 * minimum - n > c
                )

    def test_minimum_problem_has_the_sentence_of_sdq(self) -> None:
        ours = find_problem(10, 7, **SUMS)
        settings = {"protocol": "sdq", "pfds": None, "sdq": {"n_databases": 10}}
        theirs = find_problem(10, 7, **settings)
        assert (
            ours.what == theirs.what.replace("databases", "holders")
            and "n_holders + max_colluders" in ours.what
        )
        assert (ours.code, ours.path, ours.fix) == (theirs.code, theirs.path, theirs.fix)
        assert ours.fix == "minimum = 8, or max_colluders = 3"

    def test_secure_sum_has_three_to_a_thousand_members(self) -> None:
        few, crowd = find_problem(2, **SUMS), find_problem(1001, **SUMS)
        assert (few.code, few.path, few.fix) == ("SPEC-021", ("pfds", "n_holders"), "n_holders = 3")
        assert (
            few.what
            == "n_holders = 2: each of two holders could subtract its own counts from the sum."
        )
        assert (crowd.path, crowd.fix) == (
            ("pfds", "n_holders"),
            "n_holders = 1000",
        ) and "at most 1,000 members" in crowd.what
        assert (
            find_problems(1)
            == find_problems(2)
            == find_problems(10_000)
            == find_problems(3, **SUMS)
            == find_problems(1000, **SUMS)
            == []
        )

    def test_minimum_is_at_most_number_of_holders(self) -> None:
        for more in ({}, SUMS, PAPER):
            found = find_problem(10, 11, **more)
            assert (found.code, found.path, found.fix) == (
                "SPEC-021",
                ("participation", "minimum"),
                "minimum = 10",
            )
            assert found.what == "minimum = 11, but there are 10 holders."

    def test_delta_needs_secure_sums(self) -> None:
        assert find_problems(**GAUSS) == []
        for more in ({}, PAPER):
            found = find_problem(**more, privacy=GAUSS["privacy"])
            assert (found.code, found.path) == ("SPEC-022", ("privacy", "delta"))

    def test_pfds_rejects_text_features(self) -> None:
        assert find_problem(feature=[KIND, {"name": "note", "buckets": 64}]).path == (
            "feature",
            1,
            "buckets",
        )

    def test_tables_of_all_features_have_at_most_max_counts(self) -> None:
        wide = [
            {"name": f"x{i}", "values": [str(v) for v in range(1_000)], "missing": False}
            for i in range(50)
        ]
        for more in ({}, SUMS):
            assert find_problems(**more, feature=wide) == []
            found = find_problem(**more, feature=[*wide, KIND])
            assert (found.code, found.path) == ("SPEC-021", ("feature",))
            assert (
                found.what
                == "The tables of 51 features and the label have 100,006 counts; at most 100,000 "
                "can travel together."
            )
        assert find_problems(**PAPER, feature=[*wide, KIND]) == []

    def test_messages_with_max_counts_fit_their_size_limit(self) -> None:
        whole, half = (
            Array.from_values(np.zeros(MAX_COUNTS, np.int64)),
            Array.from_values(np.zeros(MAX_COUNTS // 2, np.int64)),
        )
        course = PFDSScriptState(
            step=9, weights=half, intercept=1 << 40, direction=half, reaches=(1 << 50, 1 << 50)
        )
        assert len(encode(PFDSAsk(study=bytes(32), round=9, course=course))) <= PFDSAsk.max_bytes
        assert len(encode(HolderTables(study=bytes(32), counts=whole))) <= HolderTables.max_bytes


class TestParams:
    def test_build_params_copies_settings_of_plus(self) -> None:
        made = make_study(
            12, 11, **SUMS, max_colluders=3, data=PERSON, privacy={"epsilon": 0.5, "delta": 1e-7}
        )
        assert build_params(made) == PFDSParams(
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
        assert build_params(made).n_honest == 8

    def test_build_params_copies_settings_of_paper(self) -> None:
        made = make_study(
            **PAPER,
            label=NUMBER,
            max_depth=2,
            n_candidates=5,
            n_levels=2,
            n_buckets=7,
            labelling="own",
        )
        found = build_params(made)
        assert (found.variant, found.trust, found.n_honest, found.unit) == (
            "paper",
            "local",
            1,
            "record",
        )
        assert (
            found.max_depth,
            found.n_candidates,
            found.n_levels,
            found.n_buckets,
            found.labelling,
        ) == (2, 5, 2, 7, "own")
        assert (
            found.projection
            and not build_params(make_study(**PAPER, projection=False)).projection
            and found.n_outcomes == 7
        )
        assert isinstance(found.label, Numeric)


class TestPrice:
    @pytest.mark.parametrize("more", EVERY)
    def test_plan_spends_exactly_the_epsilon_of_the_study(self, more: dict[str, Any]) -> None:
        plan = plan_study(**more)
        assert (
            1.2 - 1e-6 <= plan.loss.epsilon <= 1.2 and plan.loss.delta == plan.study.privacy.delta
        )
        assert (
            plan.loss.scope == build_params(plan.study).scope
            and plan.loss.scope.relation is Relation.ADD_REMOVE
        )
        assert plan.charges == plan.events and all(
            event.reads == ("age", "height", "kind", "naps") for event in plan.events
        )

    @pytest.mark.parametrize("epsilon", [0.1, 0.7, 1.0, 64.0])
    def test_pure_budgets_are_spent_completely(self, epsilon: float) -> None:
        for more in ({}, {**SUMS, "label": CLASSES}, {**PAPER, "max_depth": 2}):
            assert plan_study(**more, privacy={"epsilon": epsilon}).loss.epsilon == epsilon
        assert plan_study(**SUMS, privacy={"epsilon": epsilon}).loss.epsilon == pytest.approx(
            epsilon, abs=1e-10
        )

    @pytest.mark.parametrize("more", EVERY)
    def test_plan_events_equal_prices_of_the_protocol(self, more: dict[str, Any]) -> None:
        plan = plan_study(**more)
        params = build_params(plan.study)
        if params.variant == "paper":
            prices = list(paper.compute_prices(params).values())
        else:
            prices = (
                [tables.price_tables(params)]
                if params.trust == "local"
                else list(SecureSumScript(params).prices.values())
            )
        assert plan.events == prices

    def test_paper_splits_epsilon_between_tree_and_counts(self) -> None:
        plan = plan_study(**PAPER, feature=make_numbers(8), max_depth=6, privacy={"epsilon": 1.2})
        assert [
            (release.name, release.count, release.event.epsilon, release.event.mechanism)
            for release in plan.releases
        ] == [
            ("the choice of split values of a level", 5, 0.1, "exponential"),
            ("the classes in the leaves", 1, 0.1, "discrete-laplace"),
            ("the number of records in the nodes of a level", 3, 0.2, "discrete-laplace"),
        ]
        assert plan.loss.epsilon == 1.2

    def test_paper_without_projection_leaves_half_of_epsilon_unspent(self) -> None:
        plan = plan_study(**PAPER, projection=False)
        assert plan.loss.epsilon == 0.6 and [release.count for release in plan.releases] == [2, 1]
        assert plan.notes == (
            "Without the projection no level is counted: the half of the study's epsilon that is "
            "reserved for this is not spent.",
        )
        assert "in the nodes of" not in plan.make_statement().leaves

    @pytest.mark.parametrize(
        ("epsilon", "holders", "q"),
        [(1.0, 10, 3), (0.1, 100, 1), (1.0, 1000, 1), (1.0, 2, 3), (0.1, 4, 2)],
    )
    def test_local_tables_are_one_release(self, epsilon: float, holders: int, q: int) -> None:
        plan = plan_study(
            holders, 2, privacy={"epsilon": epsilon}, participation={"minimum": 2, "size": 2_000}
        )
        [release] = plan.releases
        assert release.name == f"tables of {q} attribute{'s' if q > 1 else ''} and the label"
        assert (release.count, release.event.mechanism, release.event.epsilon) == (
            1,
            "discrete-laplace",
            epsilon,
        )
        assert release.event.parameters["sensitivity"] == 256 * q

    @pytest.mark.parametrize(("size", "n_rounds"), [(10**6, 6), (10_000, 3), (100, 0)])
    def test_secure_sum_plan_names_releases_and_counts_rounds(
        self, size: int, n_rounds: int
    ) -> None:
        plan = plan_study(10, **GAUSS, participation={"minimum": 10, "size": size})
        names = ["sums of the tables of all attributes and the label", "sums of a table of scores"]
        names += ["sums of residuals", "sums of a second table of scores"] if n_rounds else []
        assert [release.name for release in plan.releases] == names
        assert (
            [release.count for release in plan.releases] == [1, 1, n_rounds, 1]
            if n_rounds
            else [1, 1]
        )
        assert {release.event.mechanism for release in plan.releases} == {"gaussian-shares"}

    @pytest.mark.parametrize(
        "privacy",
        [
            {"epsilon": 1.0, "delta": 1e-6},
            {"epsilon": 0.1, "delta": 1e-9},
            {"epsilon": 8.0, "delta": 0.01},
        ],
    )
    @pytest.mark.parametrize("size", [10**6, 10_000, 100])
    def test_gaussian_sums_spend_at_most_epsilon_and_delta(
        self, privacy: dict[str, float], size: int
    ) -> None:
        plan = plan_study(10, **SUMS, privacy=privacy, participation={"minimum": 10, "size": size})
        assert plan.loss == compose_zcdp(plan.events, privacy["delta"])
        assert (
            privacy["epsilon"] * (1 - 1e-5) <= plan.loss.epsilon <= privacy["epsilon"]
            and plan.loss.delta == privacy["delta"]
        )
        assert compose_sequential(plan.charges).delta <= privacy["delta"]

    def test_ledger_is_charged_the_loss_of_a_gaussian_plan(self) -> None:
        plan = plan_study(**GAUSS)
        assert compose_sequential(plan.charges).epsilon > 2 * plan.loss.epsilon
        assert plan.budget is not None and plan.notes == ()
        assert rho_to_epsilon(*plan.budget) == plan.loss.epsilon
        assert plan.to_dict()["charged"] == plan.to_dict()["total"] == plan.loss.to_dict()
        twice = format_epsilon(from_grains(2 * grains_up(plan.loss.epsilon)))
        assert f"your ledger counts epsilon {twice}, delta " in read_label(plan)
        assert plan_study(**SUMS).budget is None

    def test_noise_grows_with_rows_of_a_person_at_the_same_price(self) -> None:
        for more in ({}, SUMS, PAPER):
            one, three = (
                plan_study(**more, data={"person": "p", "max_rows_per_person": rows})
                for rows in (1, 3)
            )
            assert one.loss.epsilon == three.loss.epsilon and three.loss.scope.unit is Unit.PERSON
            assert three.forecasts[0].value == pytest.approx(3 * one.forecasts[0].value, rel=1e-2)
            assert three.notes[0].startswith(
                "At most 3 rows of a person are used in each database; a person in k of the "
                "databases spends"
            )

    @pytest.mark.parametrize("more", [SUMS, PAPER])
    def test_plan_rejects_epsilon_too_small_to_divide(self, more: dict[str, Any]) -> None:
        with pytest.raises(SpecError) as error:
            plan_study(**more, privacy={"epsilon": 1e-9})
        assert (
            error.value.code == "PLAN-001"
            and "with a total epsilon of 1e-09, cannot be made" in error.value.what
        )

    def test_plan_rejects_delta_too_small_to_divide(self) -> None:
        with pytest.raises(SpecError) as error:
            plan_study(**SUMS, privacy={"epsilon": 1.0, "delta": 1e-100})
        assert (
            error.value.code == "PLAN-001"
            and "with a total epsilon of 1.0 and delta 1e-100, cannot be made" in error.value.what
        )


class TestForecast:
    def test_local_forecast_adds_the_noise_of_all_holders(self) -> None:
        plan = plan_study()
        params = build_params(plan.study)
        noise = DiscreteLaplace(1.2, CellCounts(3, GRID), params.scope)
        assert plan.forecasts[0].value == pytest.approx(
            math.sqrt(10 * noise.variance()) / GRID / 10_000
        )
        # A third of 300 holders answers each of three tables, with a third of noise and rows.
        third = plan_study(300, participation={"minimum": 10, "size": 10_000}).forecasts[0].value
        assert third == pytest.approx(math.sqrt(100) * math.sqrt(2) / 1.2 / (10_000 / 3), rel=1e-3)

    @pytest.mark.parametrize("more", [SUMS, GAUSS])
    def test_secure_sum_forecast_adds_noise_shares_of_all_holders(
        self, more: dict[str, Any]
    ) -> None:
        plan = plan_study(10, 9, **more, max_colluders=3)
        mechanism = SecureSumScript(build_params(plan.study)).find_mechanism("tables")
        assert (
            mechanism is not None
            and plan.forecasts[0].value == math.sqrt(mechanism.variance(10)) / GRID / 10_000
        )

    def test_forecast_error_falls_with_population_size(self) -> None:
        for more in ({}, SUMS, GAUSS):
            small, large = (
                plan_study(10, **more, participation={"minimum": 10, "size": size})
                .forecasts[0]
                .value
                for size in (1_000, 100_000)
            )
            assert large < small / 5

    def test_find_warnings_warns_of_too_few_rows(self) -> None:
        for more in ({}, SUMS, GAUSS):
            assert find_warnings(plan_study(**more), NOW) == ()
            [doubt] = find_warnings(
                plan_study(10, **more, participation={"minimum": 10, "size": 25}), NOW
            )
            assert (
                "At the declared size most of the result is noise: noise on one cell of a pooled "
                "table" in doubt
            )
            # kind has three cells, and each has two classes.
            assert doubt.endswith(
                "a result is useful below 0.0834. Ask for more participants, or for a larger "
                "epsilon."
            )

    def test_find_warnings_warns_that_trees_of_paper_are_noise(self) -> None:
        plan = plan_study(
            100,
            **PAPER,
            feature=make_numbers(14),
            participation={"minimum": 100, "size": 44_000},
            privacy={"epsilon": 1.0},
        )
        [doubt] = find_warnings(plan, NOW)
        # A holder has 440 rows in 128 leaves; the noise is that of 16 parts of epsilon.
        assert (
            "an average leaf of a tree of 8 levels holds 3.4 records is 22.7; a result is "
            "useful below 0.86." in doubt
        )
        assert (
            "The paper's trees are mostly noise at such figures: on census data (Adult) their "
            "error is that of always guessing" in doubt
        )
        assert (
            doubt.endswith('variant = "plus" learns more for the same epsilon.')
            and "(errata P-01)" in doubt
        )
        assert (
            find_warnings(
                plan_study(
                    2,
                    **PAPER,
                    feature=make_numbers(2),
                    participation={"minimum": 2, "size": 44_000},
                ),
                NOW,
            )
            == ()
        )

    @pytest.mark.parametrize(
        ("n_numbers", "arities", "depth"),
        [(2, (), 2), (1, (3,), 2), (2, (3, 5, 2), 4), (0, (2, 3, 4, 5), 4), (3, (7,), 4)],
    )
    def test_expected_leaves_average_over_all_draws_of_attributes(
        self, n_numbers: int, arities: tuple[int, ...], depth: int
    ) -> None:
        def leaves(level: int, left: tuple[int, ...]) -> float:
            """Return the exact expectation over each remaining attribute."""
            if level == depth:
                return 1.0
            stay = n_numbers * 2 * leaves(level + 1, left)
            gone = sum(
                arity * leaves(level + 1, left[:i] + left[i + 1 :]) for i, arity in enumerate(left)
            )
            return (stay + gone) / (n_numbers + len(left))

        categories = [
            {"name": f"c{i}", "values": [str(v) for v in range(n)], "missing": False}
            for i, n in enumerate(arities)
        ]
        params = build_params(
            make_study(**PAPER, feature=[*make_numbers(n_numbers), *categories], max_depth=depth)
        )
        assert compute_expected_leaves(params) == pytest.approx(leaves(1, arities))

    def test_expected_leaves_are_limited_by_max_leaf_counts(self) -> None:
        wide = [
            {"name": f"c{i}", "values": [str(v) for v in range(99)], "missing": False}
            for i in range(20)
        ]
        params = build_params(make_study(**PAPER, feature=[*make_numbers(1), *wide]))
        assert compute_expected_leaves(params) == MAX_LEAF_COUNTS // 2
        deep = plan_study(**PAPER, feature=wide)
        n_levels = compute_depth(build_params(deep.study))
        assert (
            n_levels < 8
            and deep.make_statement().leaves.startswith(f"a tree of {n_levels} levels:")
            and deep.loss.epsilon <= 1.2
        )


class TestLabel:
    def test_label_of_local_tables_names_noisy_counts(self) -> None:
        label = plan_study().make_statement()
        # age, height and kind have 8, 8 and 3 cells, each with two classes.
        assert label.leaves == (
            "tables of the label and 3 attributes of 3, in all up to 38 counts of your database's "
            "rows, each blurred by random noise (at most 304 bytes). No row leaves"
        )
        some = plan_study(100, privacy={"epsilon": 0.1}).make_statement().leaves
        assert some.startswith(
            "tables of the label and 1 attribute of 3, in all up to 16 counts of your database's "
            "rows"
        )
        assert (
            label.seen_by
            == "every reader of the release, which has the tables, and the model and the made-up "
            "rows that follow from them"
        )
        assert (
            label.rests_on == ()
            and label.scope.adversary == "all who read the release"
            and label.colluders is None
        )
        assert "Relies on nobody: what you send is already protected" in read_label(plan_study())

    def test_label_of_secure_sums_names_masked_numbers(self) -> None:
        label = plan_study(10, 9, **SUMS, max_colluders=3).make_statement()
        script = SecureSumScript(build_params(make_study(10, 9, **SUMS, max_colluders=3)))
        n = sum(map(script.compute_size, script.questions))
        assert label.leaves.startswith(
            f"{n} numbers counted from your database's rows, each hidden by a mask (at most "
            f"{8 * n:,} bytes, plus keys"
        )
        assert label.leaves.endswith(
            "Only sums over the holders that answer can be read, and they contain random noise. No "
            "row leaves"
        )
        assert label.seen_by.startswith(
            "the coordinator sees masked numbers and their sums with the noise. Every reader of "
            "the release sees"
        )
        assert label.rests_on == (
            "at most 3 of the 10 holders may help the readers of the sums. The coordinator need "
            "not be trusted",
            "if more than 1 of the 10 holders drop out, the study ends without a result. What was "
            "sent stays spent",
        )
        text = read_label(plan_study(10, 9, **SUMS, max_colluders=3))
        assert (
            "pfds, trust secure-sum: only sums can be read, if at most 3 of the 10 holders work "
            "together against you" in text
        )
        assert (
            "against all who read the sums or the release, and up to 3 colluding holders" in text
            and "databases work" not in text
        )

    def test_label_without_colluders_names_the_other_holders(self) -> None:
        plan = plan_study(**SUMS, max_colluders=0)
        assert (
            "only sums can be read, if none of the other 9 holders helps those who read the sums "
            "against you" in read_label(plan)
        )
        needs, gone = plan.make_statement().rests_on
        assert "none of the 10 holders may help" in needs and gone.startswith(
            "if any of the 10 holders drops out,"
        )
        assert (
            plan.loss.scope.adversary
            == "all who read the sums or the release and hold none of the data"
        )
        known = (
            "the other holders: each knows its own share of the noise, so the guarantee is weaker "
            "against it; max_colluders = 1 covers this"
        )
        assert (
            known in plan.make_statement().not_covered
            and known not in plan_study(**SUMS).make_statement().not_covered
        )
        assert known not in plan_study().make_statement().not_covered

    def test_label_of_paper_names_tree_and_its_readers(self) -> None:
        label = plan_study(**PAPER).make_statement()
        assert label.leaves == (
            "a tree of 3 levels: its split values, drawn at random with a preference for those "
            "that split your rows well, and the counts of classes in its leaves, blurred by random "
            "noise, the number of rows in the nodes of 2 levels, blurred too; and made-up rows "
            "drawn from these. No row of your database leaves"
        )
        assert (
            label.seen_by
            == "all holders, and every other reader of the release, which may be passed on freely"
        )
        assert label.rests_on == () and label.bytes is None

    @pytest.mark.parametrize("more", EVERY)
    def test_label_lists_what_is_not_covered(self, more: dict[str, Any]) -> None:
        found = plan_study(**more).make_statement().not_covered
        assert (
            "your personal model: it is trained on your own rows and must not be published or "
            "shared" in found
        )
        assert "how many holders there are and the declared size, which are public" in found
        assert (
            "that the other holders count correctly: a false count spoils the release and cannot "
            "be detected" in found
        )
        assert "that your organisation takes part, and what its records have in common" in found
        assert (
            "rows of the same person in other databases: each database spends separately" in found
        )

    def test_label_with_person_column_protects_a_person(self) -> None:
        text = read_label(plan_study(data=PERSON))
        assert (
            "everything that this database holds about one person (at most 3 rows are used; unit: "
            "person)" in text
        )
        assert (
            "a person in k of the databases spends k times this epsilon" in text
            and "50 of 100 that a certain person is in the data" in text
        )

    @pytest.mark.parametrize("more", EVERY)
    def test_label_and_plan_dicts_agree(self, more: dict[str, Any]) -> None:
        plan = plan_study(**more)
        label, whole = plan.make_statement(digest="7f3a-91c2-0be4").to_dict(), plan.to_dict()
        assert json.loads(json.dumps({"label": label, "plan": whole}, allow_nan=False)) == {
            "label": label,
            "plan": whole,
        }
        assert (
            label["epsilon"] == plan.loss.epsilon
            and label["delta"] == plan.loss.delta
            and label["max_rows"] == 1
        )
        assert (
            label["releases"] == whole["releases"]
            and label["plain_sum"] == compose_sequential(plan.charges).epsilon
        )


class TestStarter:
    @pytest.mark.parametrize("trust", ["local", "secure-sum"])
    def test_starter_is_valid_with_either_trust(self, trust: str) -> None:
        plan = make_plan(
            parse_study_text(read_starter("pfds").replace('trust = "local"', f'trust = "{trust}"'))
        )
        assert (
            plan.study.trust == trust
            and plan.loss.epsilon == pytest.approx(1.0, abs=1e-9)
            and find_warnings(plan, NOW) == ()
        )

    @pytest.mark.parametrize(
        "labels",
        [np.arange(200) * 1.5, np.array(list("abcdefg") * 29)[:200]],
        ids=["number", "classes"],
    )
    def test_study_inferred_from_a_table_has_a_plan(self, labels: np.ndarray) -> None:
        text, _ = infer_study(
            {"age": np.arange(200) % 70, "kind": np.array(["x", "y"] * 100), "target": labels},
            "pfds",
        )
        plan = make_plan(parse_study_text(text))
        assert plan.loss.epsilon == 1.0 and "PRIVACY LABEL" in str(plan.make_statement())
