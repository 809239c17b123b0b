"""A study of SDQ: which figures go together, what it costs, and what its label says."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from shoal.domain import Numeric
from shoal.errors import SpecError
from shoal.privacy.accountant import sequential
from shoal.privacy.events import Relation, Unit
from shoal.protocols.sdq.noise import deviation_of
from shoal.protocols.sdq.params import MAX_COMMITTEE, Params, committee_size, default_choice
from shoal.protocols.sdq.queries import Free, free_price
from shoal.protocols.sdq.words import cell_names
from shoal.study.explain import explain
from shoal.study.load import parse
from shoal.study.manifest import Manifest
from shoal.study.plan import Plan, make_plan
from shoal.study.problems import Problem
from shoal.study.rules import default_colluders
from shoal.study.sdq import free_of, params_of, script_of
from shoal.study.spec import Study
from shoal.study.templates import study_text

FEATURES: list[dict[str, Any]] = [
    {"name": "age", "range": [0, 120], "bins": [30, 60]},
    {"name": "kind", "values": ["a", "b", "c"], "missing": False},
    {"name": "height", "range": [0, 3]},
]
QUERIES = {"features": ["age", "kind"], "n_queries": 4, "epsilon_release": 0.25}
PERSON = {"person": "patient", "max_rows_per_person": 3}
TWO = {"variant": "paper", "noise": "two-selected"}


def document(n_databases: int = 10, minimum: int | None = None, /, **changes: Any) -> dict[str, Any]:
    """A study of so many databases, all of which answer; keys of [sdq] and of the top may be given alike."""
    settings = {key: changes.pop(key) for key in ("learner", "depth", "choice", "noise", "max_colluders") if key in changes}
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


def study(n_databases: int = 10, minimum: int | None = None, /, **changes: Any) -> Study:
    return Study(**document(n_databases, minimum, **changes))


def plan_of(n_databases: int = 10, minimum: int | None = None, /, **changes: Any) -> Plan:
    return make_plan(study(n_databases, minimum, **changes))


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


class TestDefaults:
    @pytest.mark.parametrize("n", [*range(3, 40), 100, 1000])
    @pytest.mark.parametrize("more", [{}, {"variant": "paper"}, {"learner": "naive-bayes"}])
    def test_every_number_of_databases_makes_a_study(self, n: int, more: dict[str, Any]) -> None:
        settings = study(n, participation={"minimum": n, "size": 10_000}, **more).sdq
        assert settings is not None and settings.max_colluders == default_colluders(n)
        assert settings.choice == (None if more else default_choice(n, settings.max_colluders))

    @pytest.mark.parametrize("n", range(3, MAX_COMMITTEE + 1))
    def test_two_can_be_selected_of_every_number_that_computes_jointly(self, n: int) -> None:
        assert problems(n, **TWO) == []

    def test_a_tree_is_as_deep_as_its_variant_says(self) -> None:
        deep = [(more.get("variant"), study(**more).sdq.depth) for more in ({}, {"variant": "paper"}, {"learner": "naive-bayes"})]  # type: ignore[union-attr]
        assert deep == [(None, 8), ("paper", 4), (None, None)]
        assert study(depth=3).sdq.depth == study(depth=3, variant="paper").sdq.depth == 3  # type: ignore[union-attr]

    @pytest.mark.parametrize(
        ("n", "c", "choice"), [(10, 4, "mpc"), (10, 5, "sums"), (3, 0, "mpc"), (4, 2, "sums"), (100, 10, "mpc"), (100, 11, "sums")]
    )
    def test_splits_are_chosen_jointly_where_an_honest_majority_is_sure(self, n: int, c: int, choice: str) -> None:
        assert study(n, max_colluders=c).sdq.choice == choice  # type: ignore[union-attr]

    def test_a_committee_takes_so_many_scores_and_no_more(self) -> None:
        features = [{"name": f"f{i}", "values": ["a", "b"]} for i in range(301)]
        assert problems(1000, 1000, max_colluders=3, feature=features[:300]) == []
        found = problem(1000, 1000, max_colluders=3, feature=features)
        assert "1000 databases and 301 features" in found.what and "at most 300 features" in str(found.fix)
        assert problems(1000, 1000, max_colluders=3, feature=features, choice="sums") == []

    def test_what_is_written_stays(self) -> None:
        settings = study(choice="sums", max_colluders=1, depth=2, noise="all-contribute").sdq
        assert settings is not None and (settings.choice, settings.max_colluders, settings.depth) == ("sums", 1, 2)

    def test_there_is_one_form_of_a_manifest(self) -> None:
        made = study()
        assert Manifest(made).digest == Manifest(study(choice="mpc", depth=8, learner="tree", max_colluders=4)).digest
        assert Study.from_content(made.content()) == made
        # A default that is left out is filled in, so the bytes are no others than those of the whole.
        assert Study(**document(choice=None, depth=None)) == made

    def test_a_strange_number_of_databases_or_colluders_is_only_that(self) -> None:
        for strange in ({"n_databases": "ten"}, {"n_databases": 0}, {"n_databases": 10, "max_colluders": "3"}, {"n_databases": 1001}):
            found = problems(sdq=strange)
            assert [one.path[0] for one in found] == ["sdq"] and found[0].code in ("SPEC-012", "SPEC-013")


class TestConditions:
    @pytest.mark.parametrize("n", [3, 4, 5, 10, 11])
    def test_two_lists_of_survivors_always_have_an_honest_signer_in_common(self, n: int) -> None:
        for c in range(n + 1):
            for minimum in range(1, n + 1):
                # The fewest members that two lists of that many have in common.
                is_safe = 2 * minimum - n > c
                assert (problems(n, minimum, max_colluders=c, variant="paper") == []) == is_safe

    @pytest.mark.parametrize("n", [3, 4, 10])
    def test_the_fix_works(self, n: int) -> None:
        for c in range(n + 2):
            for minimum in range(1, n + 1):
                for found in problems(n, minimum, max_colluders=c, variant="paper"):
                    assert (found.code, found.path) == ("SPEC-021", ("participation", "minimum")) and found.fix is not None
                    for fix in found.fix.split(", or "):
                        key, number = fix.partition(",")[0].split(" = ")
                        other = {"minimum": minimum, "max_colluders": min(c, n - 1), key: int(number)}
                        assert problems(n, other["minimum"], max_colluders=other["max_colluders"], variant="paper") == []

    def test_the_sentence_says_why(self) -> None:
        found = problem(10, 7)
        assert "two lists of survivors, each signed by 7, may have no honest signer in common" in found.what
        assert found.fix == "minimum = 8, or max_colluders = 3"
        assert problem(10, 4).fix == "minimum = 8" and problem(3, 3, max_colluders=3).fix == "max_colluders = 2"
        assert problem(3, 1, max_colluders=3).fix == "minimum = 3, with max_colluders = 2 at most"

    def test_a_committee_needs_a_majority(self) -> None:
        found = problem(10, max_colluders=5, choice="mpc")
        assert (found.code, found.path) == ("SPEC-021", ("sdq", "choice"))
        assert found.what.endswith("honest majority: 11 databases where 5 may collude. There are 10.")
        assert found.fix == 'choice = "sums", or max_colluders = 4'
        assert problems(10, max_colluders=5, choice="sums") == [] == problems(10, max_colluders=4, choice="mpc")
        large = problem(100, max_colluders=11, choice="mpc")
        assert "A committee has at most 21." in large.what and large.fix == 'choice = "sums", or max_colluders = 10'
        assert problems(100, max_colluders=10, choice="mpc") == []

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
    def test_what_has_no_meaning_is_named(self, changes: dict[str, Any], key: str) -> None:
        found = problem(**changes)
        assert (found.code, found.path) == ("SPEC-022", ("sdq", key)) and found.fix is not None

    def test_of_two_databases_each_knows_the_other(self) -> None:
        found = problem(2)
        assert (found.code, found.path, found.fix) == ("SPEC-021", ("sdq", "n_databases"), "n_databases = 3")
        assert problems(2, variant="paper", trust="local") == []

    def test_databases_are_not_counted_against_rows(self) -> None:
        assert problems(10, participation={"minimum": 10, "size": 5}) == []

    def test_free_counts_name_a_feature_once(self) -> None:
        found = problem(queries={**QUERIES, "features": ["age", "kind", "age"]})
        assert (found.code, found.path, found.what) == ("SPEC-021", ("queries", "features", 2), "[queries] names age twice.")

    def test_no_more_answer_than_there_are(self) -> None:
        for more in ({}, {"variant": "paper", "trust": "local"}, TWO):
            found = problem(10, 11, **more)
            assert (found.code, found.path, found.fix) == ("SPEC-021", ("participation", "minimum"), "minimum = 10")

    @pytest.mark.parametrize(
        ("numbers", "more", "path", "fix"),
        [
            ((22,), {}, ("sdq", "n_databases"), 'noise = "all-contribute", or n_databases = 21'),
            ((10, 9), {}, ("participation", "minimum"), "minimum = 10"),
            ((10,), {"max_colluders": 5}, ("sdq", "max_colluders"), 'max_colluders = 4, or noise = "all-contribute"'),
        ],
    )
    def test_two_are_selected_by_all_and_all_must_answer(
        self, numbers: tuple[int, ...], more: dict[str, Any], path: tuple[str, str], fix: str
    ) -> None:
        found = problem(*numbers, **TWO, **more)
        assert (found.code, found.path, found.fix) == ("SPEC-021", path, fix)


class TestParams:
    def test_the_study_reaches_the_parameters(self) -> None:
        made = params_of(study(12, 11, depth=5, max_colluders=3, choice="sums", data=PERSON))
        assert made == Params(
            study(12).schema(),
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
        assert made.n_honest == 8 and isinstance(made.schema["height"], Numeric) and made.schema["height"].bins is not None

    def test_the_papers_variants_reach_them_too(self) -> None:
        two = params_of(study(**TWO, max_colluders=2))
        assert (two.variant, two.noise, two.trust, two.depth, two.max_colluders) == ("paper", "two-selected", "secure-sum", 4, 2)
        local = params_of(study(variant="paper", trust="local"))
        assert (local.trust, local.n_honest, local.max_colluders, local.unit) == ("local", 1, 0, "record")
        assert params_of(study(learner="naive-bayes")).learner == "naive-bayes"

    @pytest.mark.parametrize(("low", "high", "n"), [(1e16, 1e16 + 2, 2), (1e16, 1e16 + 8, 5), (0.0, 5e-324, 2), (0.0, 1.0, 8)])
    def test_a_range_too_narrow_for_eight_cells_has_fewer(self, low: float, high: float, n: int) -> None:
        made = params_of(study(feature=[{"name": "mass", "range": [low, high], "missing": False}])).schema["mass"]
        assert isinstance(made, Numeric) and made.n_bins == n == len(set(cell_names(made))) and made.bins is not None
        assert all(low <= cut < high for cut in made.bins)

    def test_free_counts_reach_them(self) -> None:
        assert free_of(study(queries=QUERIES)) == Free(("age", "kind"), 4, 0.25) and free_of(study()) is None


class TestPrice:
    EVERY = ({}, {"choice": "sums"}, {"learner": "naive-bayes"}, {"variant": "paper"}, TWO, {"variant": "paper", "trust": "local"})

    @pytest.mark.parametrize("more", EVERY)
    def test_all_of_epsilon_is_spent_and_no_more(self, more: dict[str, Any]) -> None:
        plan = plan_of(**more)
        assert 1.2 - 1e-9 <= plan.loss.epsilon <= 1.2 and plan.loss.delta == 0 and plan.charges == plan.events
        assert plan.loss.scope == params_of(plan.study).scope and plan.loss.scope.relation is Relation.ADD_REMOVE

    @pytest.mark.parametrize("more", EVERY)
    def test_a_ledger_is_charged_what_the_plan_says(self, more: dict[str, Any]) -> None:
        plan = plan_of(**more, queries=QUERIES)
        script, free = script_of(plan.study), free_of(plan.study)
        assert free is not None and plan.events[-4:] == [free_price(script.params, free)] * 4
        # Questions of one kind may have other noise, but never another price.
        asked = [question for kind, count in script.dearest for question in [kind] * count]
        assert plan.events[:-4] == [script.prices[question] for question in asked]
        assert sequential(plan.charges) == plan.loss

    def test_the_papers_accounting_is_b_over_twice_the_levels(self) -> None:
        plan = plan_of(variant="paper", depth=3, privacy={"epsilon": 0.8})
        assert [(release.count, release.event.epsilon) for release in plan.releases] == [(4, 0.1), (4, 0.1)]
        assert plan.loss.scope.adversary == "the miner and up to 4 colluding databases"

    def test_releases_have_words(self) -> None:
        names = {release.name for more in self.EVERY for release in plan_of(**more).releases}
        assert names == {
            "how many records are in each node of a level of the tree",
            "all counts of a level: of classes in leaves, of values and classes in other nodes",
            "the choice of the attribute to split on",
            "tables of every attribute and the label",
            "one table of the chosen attributes and the label",
        }

    def test_a_person_with_several_rows_needs_more_noise_for_the_same_price(self) -> None:
        one, three = (
            plan_of(learner="naive-bayes", data={"person": "p", "max_rows_per_person": rows}).releases[0].event for rows in (1, 3)
        )
        assert one.epsilon == three.epsilon and three.parameters["scale"] == pytest.approx(3 * float(one.parameters["scale"]))
        assert three.scope.unit is Unit.PERSON

    @pytest.mark.parametrize("more", EVERY)
    def test_free_counts_are_added(self, more: dict[str, Any]) -> None:
        plan = plan_of(**more, queries=QUERIES)
        assert plan.loss.epsilon == pytest.approx(2.2)
        free = plan.releases[-1]
        assert (free.name, free.count, free.event.epsilon) == ("the answer to a free count", 4, 0.25)
        assert free.event.reads == ("age", "kind") and free.event.scope == plan.loss.scope

    def test_a_budget_too_small_for_its_parts_is_refused(self) -> None:
        with pytest.raises(SpecError) as error:
            plan_of(variant="paper", privacy={"epsilon": 1e-9})
        assert error.value.code == "PLAN-001" and "whose epsilon is 1e-09 in all" in error.value.what

    @pytest.mark.parametrize("more", EVERY)
    def test_the_forecast_is_the_noise_of_the_last_table(self, more: dict[str, Any]) -> None:
        plan = plan_of(**more)
        [forecast] = plan.forecasts
        n_tables = 3 if "learner" in more else 1
        assert forecast.value == deviation_of(params_of(plan.study), plan.releases[-1].event.epsilon, n_tables)
        # kind has the fewest cells, three, and each has two classes.
        assert forecast.useless_from == pytest.approx(10_000 / 12)

    def test_more_colluders_mean_more_noise(self) -> None:
        few, many = (plan_of(variant="paper", max_colluders=c).forecasts[0].value for c in (0, 5))
        assert many == pytest.approx(few * math.sqrt(2))
        local, alone = (plan_of(variant="paper", **more).forecasts[0].value for more in ({"trust": "local"}, {"noise": "two-selected"}))
        assert local == pytest.approx(alone * math.sqrt(10))


class TestLabel:
    def test_sums_and_choices_leave(self) -> None:
        label = plan_of(max_colluders=3).statement()
        assert (
            " counts of your database's rows, each under a mask (at most " in label.leaves and "besides keys and signatures" in label.leaves
        )
        assert "; scores of attributes, in sealed shares for a committee of 7 databases; no row" in label.leaves
        assert (
            "the coordinator and the miner see masked numbers, their sums with the noise and which attributes were chosen;" in label.seen_by
        )
        summed = plan_of(max_colluders=3, choice="sums", queries=QUERIES).statement()
        assert "committee" not in summed.leaves and "chosen" not in summed.seen_by
        assert summed.leaves.endswith("; a table of counts for each of up to 4 free counts; no row")
        assert "see masked numbers, their sums with the noise and the answers to up to 4 free counts; everyone" in summed.seen_by

    def test_it_speaks_to_the_database_about_the_persons_in_it(self) -> None:
        label = read(plan_of(data=PERSON, max_colluders=3))
        assert "sdq, secure-sum: only sums can be read, as long as at most 3 of the 10 databases work together against you" in label
        assert "Protects everything that this database holds about one person (at most 3 rows are used; unit: person): it is hard" in label
        assert "likely that a certain person is in the data at all, what your database sends could move them" in label
        assert "that something is true of a certain person, knowing that the data is there" in label
        assert "someone in k of the databases: k times this epsilon" in label and "rows of the same person" not in label
        assert "people like those in your database" in label and "Undo Your database may leave" in label
        assert "at most 1 row is used" in read(plan_of(data={"person": "p", "max_rows_per_person": 1}))
        by_row = read(plan_of(max_colluders=0))
        assert "as long as none of the other 9 databases helps the miner against you" in by_row
        assert "rows of the same person in other databases" in by_row and "k of the" not in by_row and "one row of the data" in by_row

    def test_what_depends_on_a_condition_begins_with_it(self) -> None:
        two = plan_of(**TWO).statement()
        assert read(plan_of(**TWO)).count("If no database tells the miner anything: if someone thought it 50 of 100 likely") == 2
        assert two.to_dict()["provided"] == "no database tells the miner anything"
        assert "tells the miner anything: if" not in read(plan_of())

    def test_the_starter_study_sends_720_counts(self) -> None:
        leaves = make_plan(parse(study_text("sdq"))).statement().leaves
        assert leaves.startswith("up to 720 counts of your database's rows, each under a mask (at most 5,760 bytes, besides keys")

    def test_an_attribute_that_stands_alone_is_not_chosen(self) -> None:
        label = plan_of(feature=FEATURES[:1]).statement()
        # Three bins and the missing one, with two classes.
        assert label.leaves.startswith(
            "up to 8 counts of your database's rows, each under a mask (at most 64 bytes,"
        ) and "committee" not in str(label)
        assert [release.name for release in label.releases] == ["one table of the chosen attributes and the label"]

    def test_naive_bayes_sends_one_table_of_each_attribute(self) -> None:
        # Of age, kind and height 4, 3 and 9 cells with the missing ones, each with two classes.
        assert (
            plan_of(learner="naive-bayes")
            .statement()
            .leaves.startswith("up to 32 counts of your database's rows, each under a mask (at most 256 bytes,")
        )

    def test_sulq_sends_noisy_counts(self) -> None:
        plan = plan_of(variant="paper", trust="local", depth=1)
        # The sizes of the root and of nine nodes; of the root's attributes the cells, and the cells by class; of a leaf two classes.
        assert plan.statement().leaves == "up to 76 counts of your database's rows, each blurred by noise (at most 608 bytes); no row"
        assert plan.statement().seen_by == "the miner, and everyone it shows it to" and plan.statement().rests_on == ()
        assert plan.loss.scope.adversary == "the miner and all other databases" and plan.notes == ()
        free = plan_of(variant="paper", trust="local", queries=QUERIES).statement()
        assert free.seen_by == "the miner, and everyone it shows it to, the answers to up to 4 free counts included"
        assert free.colluders is None
        assert "sdq, local: what leaves is already private; nobody has to be trusted" in read(plan_of(variant="paper", trust="local"))

    def test_the_label_says_what_it_rests_on(self) -> None:
        sums, choices, gone = plan_of(10, 9, max_colluders=3).statement().rests_on
        assert sums == "for the sums: that at most 3 of the 10 databases side with the miner; the coordinator may do what it likes"
        assert choices.startswith("for the choices: that most of a committee of 7 of the databases that answer are honest, and that all of")
        assert choices.endswith("the sums do not rest on that")
        assert gone == (
            "where more than 1 of the 10 databases drop out, or one that sits in the committee vanishes while attributes are chosen, the "
            "study ends without a result; what was sent stays spent"
        )
        # A committee of nine leaves one seat empty, though sums would do with eight.
        assert (
            "where more than 1 of the 10 databases drop out, or one"
            in plan_of(10, 8, max_colluders=4, choice="mpc").statement().rests_on[2]
        )
        assert "committee" not in plan_of(10, 9, max_colluders=3, choice="sums").statement().rests_on[1]
        assert "Rests on for the sums: that at most 3" in read(plan_of(max_colluders=3))
        for more in ({"choice": "sums"}, {"variant": "paper"}, {"learner": "naive-bayes"}):
            sums, gone = plan_of(**more).statement().rests_on
            assert "any of the 10 databases drops out" in gone

    def test_what_no_sum_protects(self) -> None:
        label = read(plan_of())
        assert "that another database counts truly: one that lies spoils the model, and nobody can tell" in label
        assert "the declared size, which is public" in label and "that your organisation takes part" in label

    def test_two_selected_databases_are_told_of_with_figures(self) -> None:
        plan = plan_of(**TWO, depth=3, max_colluders=3)
        assert plan.loss.scope.adversary == "the miner, if no database tells it anything"
        [note] = plan.notes
        assert note.startswith("The two databases that add the noise know it: to each of them, and to whoever is told, no epsilon holds")
        assert "Two are selected anew for each of 4 levels of the tree. If 3 of the 10 databases collude with the miner" in note
        # 6 and 42 of 90 pairs; 1 - (14/15)^4 and 1 - (7/15)^4.
        assert "with chance 6.67 % both selected ones do, and the true counts are known; with chance 46.7 % one of them does" in note
        assert "At least once both do with chance 24.2 %, and one or both with chance 95.3 % (errata S-01 to S-03)." in note
        label = plan.statement()
        assert f"t{note[1:-1]}" in label.not_covered
        assert label.rests_on[0] == "for the noise: that no selected database tells what it added"
        assert "for the selection: that most of the 10 databases are honest" in label.rests_on[1] and "any of the 10" in label.rests_on[2]

    def test_without_colluders_the_selected_know_their_noise_all_the_same(self) -> None:
        [note] = plan_of(**TWO, max_colluders=0).notes
        assert note.endswith("and to whoever is told, no epsilon holds (errata S-02, S-04).")

    def test_two_are_selected_for_free_counts_too(self) -> None:
        [note] = plan_of(**TWO, depth=3, max_colluders=3, queries=QUERIES).notes
        assert "for each of 4 levels of the tree and each of 4 free counts." in note and "42.5 %" in note

    def test_the_rows_of_a_person_are_limited_and_that_is_told(self) -> None:
        [note] = plan_of(data=PERSON).notes
        assert note == "At most 3 rows of a person are used in each database; someone in k of the databases spends k times this epsilon."

    def test_noise_in_shares_needs_no_such_note(self) -> None:
        assert plan_of().notes == () and "selected" not in read(plan_of())


def test_the_committee_of_the_label_is_that_of_the_protocol() -> None:
    assert f"a committee of {committee_size(2)} databases" in read(plan_of(max_colluders=2))
