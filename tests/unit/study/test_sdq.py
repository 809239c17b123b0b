"""A study of SDQ: which figures go together, what it costs, and what its label says."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from shoal.data.schema import Numeric, cell_names
from shoal.errors import SpecError
from shoal.privacy.accountant import compose_sequential
from shoal.privacy.events import Relation, Unit
from shoal.protocols.sdq.noise import compute_deviation
from shoal.protocols.sdq.params import (
    MAX_COMMITTEE,
    SDQParams,
    compute_committee_size,
    compute_default_choice,
)
from shoal.protocols.sdq.queries import QueryRules, price_query
from shoal.study.constraints import StudyProblem, compute_default_colluders
from shoal.study.explain import explain
from shoal.study.loader import parse_study_text
from shoal.study.manifest import Manifest
from shoal.study.plan import Plan, make_plan
from shoal.study.sdq import build_free_queries, build_params, build_script
from shoal.study.spec import Study
from shoal.study.starters import read_starter
from shoal.study.validation import parse_content, parse_study

FEATURES: list[dict[str, Any]] = [
    {"name": "age", "range": [0, 120], "bins": [30, 60]},
    {"name": "kind", "values": ["a", "b", "c"], "missing": False},
    {"name": "height", "range": [0, 3]},
]
QUERIES = {"features": ["age", "kind"], "n_queries": 4, "epsilon_release": 0.25}
PERSON = {"person": "patient", "max_rows_per_person": 3}
TWO = {"variant": "paper", "noise": "two-selected"}


def make_document(
    n_databases: int = 10, minimum: int | None = None, /, **changes: Any
) -> dict[str, Any]:
    """Return a study in which all databases answer; changes may be keys of [sdq] or the top."""
    settings = {
        key: changes.pop(key)
        for key in ("learner", "depth", "choice", "noise", "max_colluders")
        if key in changes
    }
    base = {
        "title": "Naps",
        "purpose": "Who naps?",
        "contact": "a@example.org",
        "protocol": "sdq",
        "label": {"name": "naps", "values": ["no", "yes"]},
        "feature": FEATURES,
        "privacy": {"epsilon": 1.2},
        "participation": {"minimum": n_databases if minimum is None else minimum, "size": 10_000},
        "sdq": {"n_databases": n_databases, **settings},
    }
    return base | changes


def make_study(n_databases: int = 10, minimum: int | None = None, /, **changes: Any) -> Study:
    return parse_study(make_document(n_databases, minimum, **changes))


def plan_study(n_databases: int = 10, minimum: int | None = None, /, **changes: Any) -> Plan:
    return make_plan(make_study(n_databases, minimum, **changes))


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


class TestDefaults:
    @pytest.mark.parametrize("n", [*range(3, 40), 100, 1000])
    @pytest.mark.parametrize("more", [{}, {"variant": "paper"}, {"learner": "naive-bayes"}])
    def test_defaults_are_valid_for_every_number_of_databases(
        self, n: int, more: dict[str, Any]
    ) -> None:
        settings = make_study(n, participation={"minimum": n, "size": 10_000}, **more).sdq
        assert settings is not None and settings.max_colluders == compute_default_colluders(n)
        assert settings.choice == (
            None if more else compute_default_choice(n, settings.max_colluders)
        )

    @pytest.mark.parametrize("n", range(3, MAX_COMMITTEE + 1))
    def test_two_selected_is_valid_up_to_committee_size(self, n: int) -> None:
        assert find_problems(n, **TWO) == []

    def test_default_depth_follows_variant_and_learner(self) -> None:
        deep = [
            (more.get("variant"), make_study(**more).sdq.depth)
            for more in ({}, {"variant": "paper"}, {"learner": "naive-bayes"})
        ]  # type: ignore[union-attr]
        assert deep == [(None, 8), ("paper", 4), (None, None)]
        assert make_study(depth=3).sdq.depth == make_study(depth=3, variant="paper").sdq.depth == 3  # type: ignore[union-attr]

    @pytest.mark.parametrize(
        ("n", "c", "choice"),
        [
            (10, 4, "mpc"),
            (10, 5, "sums"),
            (3, 0, "mpc"),
            (4, 2, "sums"),
            (100, 10, "mpc"),
            (100, 11, "sums"),
        ],
    )
    def test_default_choice_is_mpc_if_committee_has_honest_majority(
        self, n: int, c: int, choice: str
    ) -> None:
        assert make_study(n, max_colluders=c).sdq.choice == choice  # type: ignore[union-attr]

    def test_mpc_choice_limits_number_of_features(self) -> None:
        features = [{"name": f"f{i}", "values": ["a", "b"]} for i in range(301)]
        assert find_problems(1000, 1000, max_colluders=3, feature=features[:300]) == []
        found = find_problem(1000, 1000, max_colluders=3, feature=features)
        assert "1000 databases and 301 features" in found.what and "at most 300 features" in str(
            found.fix
        )
        assert find_problems(1000, 1000, max_colluders=3, feature=features, choice="sums") == []

    def test_written_values_are_kept(self) -> None:
        settings = make_study(choice="sums", max_colluders=1, depth=2, noise="all-contribute").sdq
        assert settings is not None and (
            settings.choice,
            settings.max_colluders,
            settings.depth,
        ) == ("sums", 1, 2)

    def test_written_defaults_do_not_change_the_digest(self) -> None:
        made = make_study()
        assert (
            Manifest(made).digest
            == Manifest(make_study(choice="mpc", depth=8, learner="tree", max_colluders=4)).digest
        )
        assert parse_content(made.to_content()) == made
        # An omitted default is filled in, so the bytes are the same.
        assert parse_study(make_document(choice=None, depth=None)) == made

    def test_invalid_number_gives_one_problem_only(self) -> None:
        for strange in (
            {"n_databases": "ten"},
            {"n_databases": 0},
            {"n_databases": 10, "max_colluders": "3"},
            {"n_databases": 1001},
        ):
            found = find_problems(sdq=strange)
            assert [one.path[0] for one in found] == ["sdq"] and found[0].code in (
                "SPEC-012",
                "SPEC-013",
            )


class TestConditions:
    @pytest.mark.parametrize("n", [3, 4, 5, 10, 11])
    def test_minimum_ensures_a_common_honest_signer(self, n: int) -> None:
        for c in range(n + 1):
            for minimum in range(1, n + 1):
                # The smallest number of members that two lists of this size have in common.
                is_safe = 2 * minimum - n > c
                assert (
                    find_problems(n, minimum, max_colluders=c, variant="paper") == []
                ) == is_safe

    @pytest.mark.parametrize("n", [3, 4, 10])
    def test_fix_of_minimum_makes_study_valid(self, n: int) -> None:
        for c in range(n + 2):
            for minimum in range(1, n + 1):
                for found in find_problems(n, minimum, max_colluders=c, variant="paper"):
                    assert (found.code, found.path) == (
                        "SPEC-021",
                        ("participation", "minimum"),
                    ) and found.fix is not None
                    for fix in found.fix.split(", or "):
                        key, number = fix.partition(",")[0].split(" = ")
                        other = {
                            "minimum": minimum,
                            "max_colluders": min(c, n - 1),
                            key: int(number),
                        }
                        assert (
                            find_problems(
                                n,
                                other["minimum"],
                                max_colluders=other["max_colluders"],
                                variant="paper",
                            )
                            == []
                        )

    def test_minimum_problem_explains_common_signer(self) -> None:
        found = find_problem(10, 7)
        assert (
            "two lists of survivors, each signed by 7, may have no honest signer in common"
            in found.what
        )
        assert found.fix == "minimum = 8, or max_colluders = 3"
        assert (
            find_problem(10, 4).fix == "minimum = 8"
            and find_problem(3, 3, max_colluders=3).fix == "max_colluders = 2"
        )
        assert (
            find_problem(3, 1, max_colluders=3).fix == "minimum = 3, with max_colluders = 2 at most"
        )

    def test_mpc_choice_needs_honest_majority(self) -> None:
        found = find_problem(10, max_colluders=5, choice="mpc")
        assert (found.code, found.path) == ("SPEC-021", ("sdq", "choice"))
        assert found.what.endswith("honest majority: 11 databases if 5 may collude. There are 10.")
        assert found.fix == 'choice = "sums", or max_colluders = 4'
        assert (
            find_problems(10, max_colluders=5, choice="sums")
            == []
            == find_problems(10, max_colluders=4, choice="mpc")
        )
        large = find_problem(100, max_colluders=11, choice="mpc")
        assert (
            "A committee has at most 21." in large.what
            and large.fix == 'choice = "sums", or max_colluders = 10'
        )
        assert find_problems(100, max_colluders=10, choice="mpc") == []

    @pytest.mark.parametrize(
        ("changes", "key"),
        [
            ({"variant": "paper", "choice": "mpc"}, "choice"),
            ({"variant": "paper", "choice": "sums"}, "choice"),
            ({"variant": "paper", "learner": "naive-bayes"}, "learner"),
            ({"variant": "paper", "trust": "local", "max_colluders": 1}, "max_colluders"),
            ({"variant": "paper", "trust": "local", "noise": "two-selected"}, "noise"),
            ({"noise": "two-selected"}, "noise"),
            ({"learner": "naive-bayes", "choice": "sums"}, "choice"),
            ({"learner": "naive-bayes", "depth": 4}, "depth"),
        ],
    )
    def test_setting_without_meaning_is_rejected_with_fix(
        self, changes: dict[str, Any], key: str
    ) -> None:
        found = find_problem(**changes)
        assert (found.code, found.path) == ("SPEC-022", ("sdq", key)) and found.fix is not None

    def test_secure_sum_needs_three_databases(self) -> None:
        found = find_problem(2)
        assert (found.code, found.path, found.fix) == (
            "SPEC-021",
            ("sdq", "n_databases"),
            "n_databases = 3",
        )
        assert find_problems(2, variant="paper", trust="local") == []

    def test_minimum_of_databases_may_exceed_number_of_rows(self) -> None:
        assert find_problems(10, participation={"minimum": 10, "size": 5}) == []

    def test_free_counts_reject_repeated_feature(self) -> None:
        found = find_problem(queries={**QUERIES, "features": ["age", "kind", "age"]})
        assert (found.code, found.path, found.what) == (
            "SPEC-021",
            ("queries", "features", 2),
            "[queries] names age twice.",
        )

    def test_minimum_is_at_most_number_of_databases(self) -> None:
        for more in ({}, {"variant": "paper", "trust": "local"}, TWO):
            found = find_problem(10, 11, **more)
            assert (found.code, found.path, found.fix) == (
                "SPEC-021",
                ("participation", "minimum"),
                "minimum = 10",
            )

    @pytest.mark.parametrize(
        ("numbers", "more", "path", "fix"),
        [
            ((22,), {}, ("sdq", "n_databases"), 'noise = "all-contribute", or n_databases = 21'),
            ((10, 9), {}, ("participation", "minimum"), "minimum = 10"),
            (
                (10,),
                {"max_colluders": 5},
                ("sdq", "max_colluders"),
                'max_colluders = 4, or noise = "all-contribute"',
            ),
        ],
    )
    def test_two_selected_needs_all_databases_of_one_committee(
        self, numbers: tuple[int, ...], more: dict[str, Any], path: tuple[str, str], fix: str
    ) -> None:
        found = find_problem(*numbers, **TWO, **more)
        assert (found.code, found.path, found.fix) == ("SPEC-021", path, fix)


class TestParams:
    def test_build_params_copies_settings_of_plus(self) -> None:
        made = build_params(
            make_study(12, 11, depth=5, max_colluders=3, choice="sums", data=PERSON)
        )
        assert made == SDQParams(
            make_study(12).schema(),
            1.2,
            10_000,
            n_databases=12,
            minimum=11,
            max_colluders=3,
            choice="sums",
            depth=5,
            unit="person",
            max_rows=3,
        )
        assert (
            made.n_honest == 8
            and isinstance(made.schema["height"], Numeric)
            and made.schema["height"].bins is not None
        )

    def test_build_params_copies_settings_of_other_variants(self) -> None:
        two = build_params(make_study(**TWO, max_colluders=2))
        assert (two.variant, two.noise, two.trust, two.depth, two.max_colluders) == (
            "paper",
            "two-selected",
            "secure-sum",
            4,
            2,
        )
        local = build_params(make_study(variant="paper", trust="local"))
        assert (local.trust, local.n_honest, local.max_colluders, local.unit) == (
            "local",
            1,
            0,
            "record",
        )
        assert build_params(make_study(learner="naive-bayes")).learner == "naive-bayes"

    @pytest.mark.parametrize(
        ("low", "high", "n"),
        [(1e16, 1e16 + 2, 2), (1e16, 1e16 + 8, 5), (0.0, 5e-324, 2), (0.0, 1.0, 8)],
    )
    def test_range_too_narrow_for_eight_bins_has_fewer(
        self, low: float, high: float, n: int
    ) -> None:
        made = build_params(
            make_study(feature=[{"name": "mass", "range": [low, high], "missing": False}])
        ).schema["mass"]
        assert (
            isinstance(made, Numeric)
            and made.n_bins == n == len(set(cell_names(made)))
            and made.bins is not None
        )
        assert all(low <= cut < high for cut in made.bins)

    def test_build_free_queries_copies_settings(self) -> None:
        assert (
            build_free_queries(make_study(queries=QUERIES)) == QueryRules(("age", "kind"), 4, 0.25)
            and build_free_queries(make_study()) is None
        )


class TestPrice:
    EVERY = (
        {},
        {"choice": "sums"},
        {"learner": "naive-bayes"},
        {"variant": "paper"},
        TWO,
        {"variant": "paper", "trust": "local"},
    )

    @pytest.mark.parametrize("more", EVERY)
    def test_plan_spends_exactly_the_epsilon_of_the_study(self, more: dict[str, Any]) -> None:
        plan = plan_study(**more)
        assert (
            1.2 - 1e-9 <= plan.loss.epsilon <= 1.2
            and plan.loss.delta == 0
            and plan.charges == plan.events
        )
        assert (
            plan.loss.scope == build_params(plan.study).scope
            and plan.loss.scope.relation is Relation.ADD_REMOVE
        )

    @pytest.mark.parametrize("more", EVERY)
    def test_plan_events_equal_prices_of_the_protocol(self, more: dict[str, Any]) -> None:
        plan = plan_study(**more, queries=QUERIES)
        script, free = build_script(plan.study), build_free_queries(plan.study)
        assert free is not None and plan.events[-4:] == [price_query(script.params, free)] * 4
        # Questions of one kind may have different noise, but never a different price.
        asked = [
            question for kind, count in script.costliest_questions for question in [kind] * count
        ]
        assert plan.events[:-4] == [script.prices[question] for question in asked]
        assert compose_sequential(plan.charges) == plan.loss

    def test_paper_price_is_budget_over_twice_the_levels(self) -> None:
        plan = plan_study(variant="paper", depth=3, privacy={"epsilon": 0.8})
        assert [(release.count, release.event.epsilon) for release in plan.releases] == [
            (4, 0.1),
            (4, 0.1),
        ]
        assert plan.loss.scope.adversary == "the miner and up to 4 colluding databases"

    def test_releases_have_names(self) -> None:
        names = {release.name for more in self.EVERY for release in plan_study(**more).releases}
        assert names == {
            "how many records are in each node of a level of the tree",
            "all counts of a level: of classes in leaves, of values and classes in other nodes",
            "the choice of the attribute to split on",
            "tables of every attribute and the label",
            "one table of the chosen attributes and the label",
        }

    def test_noise_grows_with_rows_of_a_person_at_the_same_price(self) -> None:
        one, three = (
            plan_study(learner="naive-bayes", data={"person": "p", "max_rows_per_person": rows})
            .releases[0]
            .event
            for rows in (1, 3)
        )
        assert one.epsilon == three.epsilon and three.parameters["scale"] == pytest.approx(
            3 * float(one.parameters["scale"])
        )
        assert three.scope.unit is Unit.PERSON

    @pytest.mark.parametrize("more", EVERY)
    def test_free_counts_add_to_epsilon(self, more: dict[str, Any]) -> None:
        plan = plan_study(**more, queries=QUERIES)
        assert plan.loss.epsilon == pytest.approx(2.2)
        free = plan.releases[-1]
        assert (free.name, free.count, free.event.epsilon) == (
            "the answer to a free count",
            4,
            0.25,
        )
        assert free.event.reads == ("age", "kind") and free.event.scope == plan.loss.scope

    def test_plan_rejects_epsilon_too_small_to_divide(self) -> None:
        with pytest.raises(SpecError) as error:
            plan_study(variant="paper", privacy={"epsilon": 1e-9})
        assert (
            error.value.code == "PLAN-001" and "with a total epsilon of 1e-09," in error.value.what
        )

    @pytest.mark.parametrize("more", EVERY)
    def test_forecast_is_noise_of_the_last_table(self, more: dict[str, Any]) -> None:
        plan = plan_study(**more)
        [forecast] = plan.forecasts
        n_tables = 3 if "learner" in more else 1
        assert forecast.value == compute_deviation(
            build_params(plan.study), plan.releases[-1].event.epsilon, n_tables
        )
        # kind has the fewest cells, three, and each has two classes.
        assert forecast.useless_from == pytest.approx(10_000 / 12)

    def test_noise_grows_with_colluders(self) -> None:
        few, many = (
            plan_study(variant="paper", max_colluders=c).forecasts[0].value for c in (0, 5)
        )
        assert many == pytest.approx(few * math.sqrt(2))
        local, alone = (
            plan_study(variant="paper", **more).forecasts[0].value
            for more in ({"trust": "local"}, {"noise": "two-selected"})
        )
        assert local == pytest.approx(alone * math.sqrt(10))


class TestLabel:
    def test_label_names_masked_counts_and_scores(self) -> None:
        label = plan_study(max_colluders=3).make_statement()
        assert (
            " counts of your database's rows, each hidden by a mask (at most " in label.leaves
            and "plus keys and signatures" in label.leaves
        )
        assert (
            ", and scores of attributes as encrypted shares for a committee of 7 databases. Only "
            "sums over" in label.leaves
        )
        assert (
            "the coordinator and the miner see masked numbers, their sums with the noise and "
            "the chosen attributes." in label.seen_by
        )
        summed = plan_study(max_colluders=3, choice="sums", queries=QUERIES).make_statement()
        assert "committee" not in summed.leaves and "chosen" not in summed.seen_by
        assert ", and a table of counts for each of up to 4 free counts. Only" in summed.leaves
        assert summed.leaves.endswith("No row leaves")
        assert (
            "see masked numbers, their sums with the noise and the answers to up to 4 free "
            "counts. Everyone" in summed.seen_by
        )

    def test_label_with_person_column_protects_a_person(self) -> None:
        label = read_label(plan_study(data=PERSON, max_colluders=3))
        assert (
            "sdq, trust secure-sum: only sums can be read, if at most 3 of the 10 databases "
            "work together against you" in label
        )
        assert (
            "Protects everything that this database holds about one person (at most 3 rows are "
            "used; unit: person): its presence or absence" in label
        )
        assert (
            "50 of 100 that a certain person is in the data, what your database sends can "
            "raise it" in label
        )
        assert (
            "that something is true of a certain person, and knows that the data is there" in label
        )
        assert (
            "a person in k of the databases spends k times this epsilon" in label
            and "rows of the same person" not in label
        )
        assert (
            "people like those in your database" in label
            and "Leaving Your database may leave" in label
        )
        assert "at most 1 row is used" in read_label(
            plan_study(data={"person": "p", "max_rows_per_person": 1})
        )
        by_row = read_label(plan_study(max_colluders=0))
        assert "if none of the other 9 databases helps the miner against you" in by_row
        assert (
            "rows of the same person in other databases" in by_row
            and "k of the" not in by_row
            and "one row of the data" in by_row
        )

    def test_odds_with_condition_begin_with_it(self) -> None:
        two = plan_study(**TWO).make_statement()
        assert (
            read_label(plan_study(**TWO)).count(
                "Provided that no database helps the miner: if someone thinks the chance is 50 of"
            )
            == 2
        )
        assert two.to_dict()["provided"] == "no database helps the miner"
        assert "helps the miner: if" not in read_label(plan_study())

    def test_label_of_starter_names_720_counts(self) -> None:
        leaves = make_plan(parse_study_text(read_starter("sdq"))).make_statement().leaves
        assert leaves.startswith(
            "up to 720 counts of your database's rows, each hidden by a mask (at most 5,760 bytes, "
            "plus keys"
        )

    def test_single_feature_needs_no_choice(self) -> None:
        label = plan_study(feature=FEATURES[:1]).make_statement()
        # Three bins and the missing one, with two classes.
        assert label.leaves.startswith(
            "up to 8 counts of your database's rows, each hidden by a mask (at most 64 bytes,"
        ) and "committee" not in str(label)
        assert [release.name for release in label.releases] == [
            "one table of the chosen attributes and the label"
        ]

    def test_label_of_naive_bayes_counts_one_table_per_attribute(self) -> None:
        # age, kind and height have 4, 3 and 9 cells with missing, each with two classes.
        assert (
            plan_study(learner="naive-bayes")
            .make_statement()
            .leaves.startswith(
                "up to 32 counts of your database's rows, each hidden by a mask (at most 256 bytes,"
            )
        )

    def test_label_of_local_paper_names_noisy_counts(self) -> None:
        plan = plan_study(variant="paper", trust="local", depth=1)
        # Sizes of the root and of nine nodes; for attributes of the root the cells and the cells by
        # class; for a leaf two classes.
        assert (
            plan.make_statement().leaves
            == "up to 76 counts of your database's rows, each blurred by random noise (at most 608 "
            "bytes). No row leaves"
        )
        assert (
            plan.make_statement().seen_by == "the miner, and anyone to whom it passes them on"
            and plan.make_statement().rests_on == ()
        )
        assert plan.loss.scope.adversary == "the miner and all other databases" and plan.notes == ()
        free = plan_study(variant="paper", trust="local", queries=QUERIES).make_statement()
        assert (
            free.seen_by
            == "the miner, and anyone to whom it passes them on, with the answers to up to 4 free "
            "counts"
        )
        assert free.colluders is None
        assert "Relies on nobody: what you send is already protected" in read_label(
            plan_study(variant="paper", trust="local")
        )

    def test_label_names_its_assumptions(self) -> None:
        sums, choices, gone = plan_study(10, 9, max_colluders=3).make_statement().rests_on
        assert (
            sums == "at most 3 of the 10 databases may help the miner. The coordinator need not be "
            "trusted"
        )
        assert choices.startswith(
            "most of a committee of 7 of the answering databases are honest and all of it follow "
        )
        assert choices.endswith("The sums do not rely on this")
        assert gone == (
            "if more than 1 of the 10 databases drop out, or a member of the committee drops out "
            "while attributes are chosen, the study ends without a result. What was sent stays "
            "spent"
        )
        # A committee of nine allows one dropout, although sums need only eight.
        assert (
            "if more than 1 of the 10 databases drop out, or a member"
            in plan_study(10, 8, max_colluders=4, choice="mpc").make_statement().rests_on[2]
        )
        assert (
            "committee"
            not in plan_study(10, 9, max_colluders=3, choice="sums").make_statement().rests_on[1]
        )
        assert "Relies on at most 3 of the 10 databases" in read_label(plan_study(max_colluders=3))
        for more in ({"choice": "sums"}, {"variant": "paper"}, {"learner": "naive-bayes"}):
            sums, gone = plan_study(**more).make_statement().rests_on
            assert "any of the 10 databases drops out" in gone

    def test_label_lists_what_is_not_covered(self) -> None:
        label = read_label(plan_study())
        assert (
            "that the other databases count correctly: a false count spoils the model and cannot "
            "be detected" in label
        )
        assert (
            "the declared size, which is public" in label
            and "that your organisation takes part" in label
        )

    def test_label_of_two_selected_gives_chances_of_collusion(self) -> None:
        plan = plan_study(**TWO, depth=3, max_colluders=3)
        assert plan.loss.scope.adversary == "the miner, if no database tells it anything"
        [note] = plan.notes
        assert note.startswith(
            "The two databases that add the noise know it: no epsilon protects from them or "
            "from anyone to whom they reveal it"
        )
        assert (
            "Two are selected again for each of 4 levels of the tree. If 3 of the 10 databases "
            "help the miner" in note
        )
        # 6 and 42 of 90 pairs; 1 - (14/15)^4 and 1 - (7/15)^4.
        assert (
            "both selected ones do with chance 6.67 %, and the true counts are known; one of them "
            "does with chance 46.7 %" in note
        )
        assert (
            "At least once both do with chance 24.2 %, and one or both with chance 95.3 % (errata "
            "S-01 to S-03)." in note
        )
        label = plan.make_statement()
        assert f"t{note[1:-1]}" in label.not_covered
        assert label.rests_on[0] == "no selected database reveals the noise that it added"
        assert (
            "most of the 10 databases are honest" in label.rests_on[1]
            and "any of the 10" in label.rests_on[2]
        )

    def test_note_of_two_selected_without_colluders_gives_no_chances(self) -> None:
        [note] = plan_study(**TWO, max_colluders=0).notes
        assert note.endswith("anyone to whom they reveal it (errata S-02, S-04).")

    def test_note_of_two_selected_counts_free_counts(self) -> None:
        [note] = plan_study(**TWO, depth=3, max_colluders=3, queries=QUERIES).notes
        assert (
            "for each of 4 levels of the tree and each of 4 free counts." in note
            and "42.5 %" in note
        )

    def test_note_names_limit_of_rows_per_person(self) -> None:
        [note] = plan_study(data=PERSON).notes
        assert (
            note == "At most 3 rows of a person are used in each database; a person in k of the "
            "databases spends k times this epsilon."
        )

    def test_plan_with_noise_shares_has_no_note(self) -> None:
        assert plan_study().notes == () and "selected" not in read_label(plan_study())


def test_label_names_committee_size_of_the_protocol() -> None:
    assert f"a committee of {compute_committee_size(2)} databases" in read_label(
        plan_study(max_colluders=2)
    )


def test_plan_rejects_epsilon_that_would_abort_a_joint_choice() -> None:
    def plan(epsilon: float, choice: str) -> None:
        make_plan(
            parse_study(
                make_document(
                    choice=choice,
                    feature=[{"name": x, "values": ["a", "b"], "missing": False} for x in "xyz"],
                    data={"person": "patient", "max_rows_per_person": 1000},
                    privacy={"epsilon": epsilon},
                )
            )
        )

    with pytest.raises(SpecError) as caught:
        plan(1e-6, "mpc")
    assert caught.value.code == "SPEC-021"
    assert "epsilon = 1e-06, size = 10,000 and 10 databases" in caught.value.what
    plan(1e-6, "sums")
    plan(2e-3, "mpc")
