"""Prices before anything runs: which releases, how many, what they cost together, and what has no price."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from shoal.domain import Text
from shoal.errors import SpecError
from shoal.mechanisms.calibrate import best
from shoal.messages.base import Array
from shoal.messages.codec import encode
from shoal.privacy.accountant import sequential
from shoal.privacy.events import LOCAL_PERSON, Relation, Unit
from shoal.privacy.shuffle import amplify
from shoal.privacy.zcdp import rho_to_epsilon
from shoal.protocols.anonml.analysis import packet_bytes
from shoal.protocols.anonml.params import Paper
from shoal.protocols.ddml.messages import Draw, Update
from shoal.protocols.ddml.step import make_step, price
from shoal.study.anonml import params_of, script_of
from shoal.study.ddml import params_of as ddml_params
from shoal.study.load import parse
from shoal.study.manifest import Manifest
from shoal.study.parts import BudgetLine
from shoal.study.plan import Plan, make_plan
from shoal.study.spec import Study
from shoal.study.templates import PROTOCOLS, study_text

FEATURES: list[dict[str, Any]] = [
    {"name": "age", "range": [0, 120], "bins": [30, 60]},
    {"name": "kind", "values": ["a", "b", "c"], "missing": False},
    {"name": "height", "range": [0, 3]},
]
PAPER = {"n_partitions": 4, "n_subsets": 3, "subset_size": 1}
QUERIES = {"features": ["age", "kind"], "n_queries": 4, "epsilon_release": 0.25}


def study(protocol: str, /, **changes: Any) -> Study:
    base: dict[str, Any] = {
        "title": "Naps",
        "purpose": "Who naps?",
        "contact": "a@example.org",
        "protocol": protocol,
        "label": {"name": "naps", "values": ["no", "yes"]},
        "feature": FEATURES,
        "privacy": {"epsilon": 1.2},
        "participation": {"minimum": 10, "size": 10_000},
    }
    tables = {"sdq": {"n_databases": 10}, "pfds": {"n_holders": 10}, "ddml": {"n_instances": 10}}
    return Study(**{**base, **({protocol: tables[protocol]} if protocol in tables else {}), **changes})


def priced(plan: Plan) -> list[tuple[str, int, float]]:
    return [(release.event.mechanism, release.count, release.event.epsilon) for release in plan.releases]


def read(plan: Plan) -> str:
    """The text of the label, without its box."""
    return " ".join(str(plan.statement()).replace("│", " ").split())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_starter_studies_cost_what_they_say(protocol: str) -> None:
    spec = parse(study_text(protocol))
    plan = make_plan(spec)
    assert plan.loss.epsilon == pytest.approx(spec.privacy.epsilon, abs=1e-9) and plan.loss.epsilon <= spec.privacy.epsilon
    assert plan.loss.delta == 0 and plan.loss.scope.unit is spec.unit
    assert plan.charges == plan.events and plan.central is None


class TestAnonML:
    def test_plus_sends_one_answer_with_the_whole_budget(self) -> None:
        plan = make_plan(study("anonml"))
        [(_, count, epsilon)] = priced(plan)
        assert count == 1 and epsilon == pytest.approx(1.2, abs=1e-12) and epsilon <= 1.2
        assert plan.loss.scope == LOCAL_PERSON
        assert plan.releases[0].event.reads == ("age", "height", "kind", "naps")

    def test_plus_sends_one_packet_and_the_label_says_which_questions_there_are(self) -> None:
        label = make_plan(study("anonml")).statement()
        assert label.leaves.startswith("one packet: a ticket without your name, the number of a question and a randomised answer to it.")
        assert label.leaves.endswith("; nothing else about you") and "above a given point" in label.leaves
        assert "which bin of one feature" in label.leaves and "levels" not in label.leaves
        binned = make_plan(study("anonml", feature=FEATURES[:2])).statement().leaves
        assert "above a given point" not in binned and "which bin of one feature" in binned
        blocks = study("anonml", privacy={"epsilon": 8.0}, participation={"minimum": 10, "size": 10**6})
        assert "levels of a few features" in make_plan(blocks).statement().leaves

    def test_the_plan_says_what_is_asked_of_whom(self) -> None:
        assert make_plan(study("anonml", privacy={"epsilon": 2.0})).notes == (
            "Everyone answers one question: 4 % of the people place quantiles, 96 % answer tables of one feature and the label.",
        )
        paper = make_plan(study("anonml", variant="paper", anonml=PAPER)).notes[0]
        assert paper == (
            "Everyone is in one of 4 partitions, and answers 3 tables of 1 feature and the label, "
            "and one bit about the median of each of 1 number."
        )
        binned = make_plan(study("anonml", variant="paper", anonml={**PAPER, "n_subsets": 2}, feature=FEATURES[:2])).notes[0]
        assert binned == "Everyone is in one of 4 partitions, and answers 2 tables of 1 feature and the label."

    def test_the_bytes_are_those_of_whole_packets(self) -> None:
        plan = make_plan(study("anonml"))
        assert plan.script is not None and plan.statement().bytes == packet_bytes(plan.script) > 64
        # Four more answers about at most four cells, a byte each.
        assert make_plan(study("anonml", queries=QUERIES)).statement().bytes == packet_bytes(plan.script) + 4
        paper = make_plan(study("anonml", variant="paper", anonml=PAPER))
        assert paper.script is not None and paper.statement().bytes == 4 * packet_bytes(paper.script)
        assert paper.statement().leaves.startswith("4 packets: each a ticket") and "with the same ticket in all" in paper.statement().leaves
        one = make_plan(study("anonml", variant="paper", anonml={**PAPER, "n_subsets": 1}, feature=FEATURES[:2])).statement().leaves
        assert one.startswith("1 packet: ") and "same ticket" not in one

    def test_the_papers_subsets_are_those_of_the_digest(self) -> None:
        spec = study("anonml", variant="paper", anonml={"n_partitions": 1, "n_subsets": 1, "subset_size": 1}, feature=FEATURES[:2])
        forecasts = {tuple(forecast.value for forecast in make_plan(spec, bytes([i] * 32)).forecasts) for i in range(20)}
        assert len(forecasts) == 2
        assert make_plan(spec).forecasts == make_plan(spec, Manifest(spec).digest).forecasts

    @pytest.mark.parametrize("more", [{}, {"variant": "paper", "anonml": PAPER}])
    def test_a_ledger_is_charged_what_the_plan_says(self, more: dict[str, Any]) -> None:
        spec, digest = study("anonml", **more), bytes(range(32))
        plan = make_plan(spec, digest)
        prices = script_of(spec, digest).prices
        assert sorted(map(repr, plan.events)) == sorted(map(repr, prices.values()))
        assert sequential(plan.charges) == plan.loss == sequential(list(prices.values()))

    def test_plus_forecasts_the_error_of_equation_4(self) -> None:
        plan = make_plan(study("anonml", privacy={"epsilon": 2.0}))
        n = 3_200  # a third of the 96 % who answer tables
        # age three bins and missing, kind three, height at most four cuts and missing; each with two labels.
        assert [forecast.value for forecast in plan.forecasts] == [best(2.0, cells, n).expected_error(n) for cells in (6, 8, 12)]

    def test_paper_shares_the_budget_among_tables_and_medians(self) -> None:
        plan = make_plan(study("anonml", variant="paper", anonml=PAPER))
        medians, tables = plan.releases
        assert (tables.count, medians.count) == (3, 1)
        assert tables.event.epsilon == pytest.approx(0.3) and medians.event.epsilon == pytest.approx(0.3)
        assert medians.event.reads == ("height",)
        assert plan.loss.epsilon == pytest.approx(1.2) and plan.loss.epsilon <= 1.2
        # Equation 6: one feature spends 0.6 (its table and its median), the label 0.9 (three tables).
        assert plan.to_dict()["paper_epsilon"] == pytest.approx(0.9)
        assert plan.statement().paper_epsilon == pytest.approx(0.9)

    def test_paper_accounting_spends_more_than_it_says_and_the_plan_shows_both(self) -> None:
        plan = make_plan(study("anonml", variant="paper", anonml={**PAPER, "accounting": "paper"}))
        assert [release.event.epsilon for release in plan.releases] == [pytest.approx(0.4)] * 2
        assert plan.statement().paper_epsilon == pytest.approx(1.2)
        assert plan.loss.epsilon == pytest.approx(1.6)
        assert "1.2" in plan.notes[1] and "1.6" in plan.notes[1]
        assert "plain sum of 4 releases" in str(plan.statement()) and "own accounting: epsilon 1.2" in str(plan.statement())

    def test_one_table_and_a_median_in_equation_6(self) -> None:
        settings = {"n_partitions": 1, "n_subsets": 1, "subset_size": 3, "accounting": "paper"}
        plan = make_plan(study("anonml", variant="paper", anonml=settings))
        assert [release.name for release in plan.releases] == [
            "a perturbed bit for the median of height",
            "a perturbed table of 3 features and the label",
        ]
        assert [release.event.epsilon for release in plan.releases] == [pytest.approx(0.6)] * 2
        assert plan.releases[1].event.parameters["cardinality"] == 72
        assert plan.statement().paper_epsilon == pytest.approx(1.2)

    def test_declared_bins_need_no_median(self) -> None:
        plan = make_plan(study("anonml", variant="paper", anonml={**PAPER, "n_subsets": 2}, feature=FEATURES[:2]))
        [tables] = plan.releases
        assert tables.count == 2 and tables.event.epsilon == pytest.approx(0.6)
        both = [best(tables.event.epsilon, cells, 2500, ("random-response", "rappor", "pq")) for cells in (6, 8)]
        assert [forecast.value for forecast in plan.forecasts] == [pytest.approx(table.expected_error(2500)) for table in both]

    def test_the_papers_settings_reach_the_parameters(self) -> None:
        params = params_of(study("anonml", variant="paper", anonml={**PAPER, "classifier": "tree", "score": "auc", "accounting": "paper"}))
        assert isinstance(params, Paper)
        assert (params.classifier, params.score, params.accounting, params.n_partitions) == ("tree", "auc", "paper", 4)
        assert params_of(study("anonml", variant="paper", anonml=PAPER)) == Paper(params.schema, 1.2, 10_000, 4, 3, 1)

    def test_a_table_of_too_many_cells_is_refused(self) -> None:
        wide = [{"name": f"f{i}", "values": [str(v) for v in range(1000)]} for i in range(4)]
        with pytest.raises(SpecError) as error:
            make_plan(study("anonml", variant="paper", anonml={"n_partitions": 1, "n_subsets": 1, "subset_size": 4}, feature=wide))
        assert error.value.code == "PLAN-001" and "cardinality" in error.value.what

    def test_free_questions_are_added(self) -> None:
        plan = make_plan(study("anonml", queries=QUERIES))
        assert plan.loss.epsilon == pytest.approx(2.2)
        assert plan.releases[1].count == 4 and plan.releases[1].event.reads == ("age", "kind")
        assert "; and up to 4 randomised answers to free questions; nothing else" in plan.statement().leaves

    @pytest.mark.parametrize("protocol", ["anonml", "sdq"])
    def test_a_number_without_bins_cannot_be_counted(self, protocol: str) -> None:
        with pytest.raises(SpecError) as error:
            make_plan(study(protocol, queries={**QUERIES, "features": ["height"]}))
        assert error.value.code == "PLAN-001" and error.value.fix == "Give height bins = [...]"

    def test_a_crowd_is_the_smallest_batch_of_honest_messages(self) -> None:
        spec = study(
            "anonml",
            trust="shuffled",
            privacy={"epsilon": 1.0, "delta": 1e-6},
            participation={"minimum": 5_001, "size": 50_000, "honest_share": 0.9},
        )
        plan = make_plan(spec)
        assert plan.crowd == 4_500 and plan.loss.epsilon == 1.0 and plan.loss.delta == 0
        central = plan.central
        assert central is not None and 0 < central.delta <= 1e-6
        assert central.epsilon == pytest.approx(amplify(1.0, 4_500, 1e-6), rel=1e-3)
        assert central.epsilon >= amplify(1.0, 4_500, 1e-6) * (1 - 1e-9)
        label = plan.statement()
        assert label.shuffled is not None and label.shuffled.n == 4_500 and label.epsilon == 1.0


class TestDDML:
    def test_updates_share_the_budget(self) -> None:
        plan = make_plan(study("ddml", privacy={"epsilon": 1.2, "n_updates": 7}))
        [(_, count, epsilon)] = priced(plan)
        assert count == 7 and epsilon <= math.floor(1.2e12 / 7) / 1e12 and epsilon == pytest.approx(1.2 / 7)
        assert plan.loss.epsilon <= 1.2 and plan.loss.scope.relation is Relation.REPLACE
        assert plan.releases[0].event.reads == ("age", "height", "kind", "naps")

    @pytest.mark.parametrize(
        "changes",
        [
            {"privacy": {"epsilon": 1.2, "n_updates": 3}},
            {"privacy": {"epsilon": 1.2, "unit": "weight"}},
            {"variant": "paper"},
            {"label": {"name": "naps", "range": [0, 24]}},
        ],
    )
    def test_a_ledger_is_charged_what_the_plan_says(self, changes: dict[str, Any]) -> None:
        spec = study("ddml", **changes)
        assert make_plan(spec).charges == [price(ddml_params(spec))] * spec.privacy.n_updates

    def test_the_label_names_the_mechanism(self) -> None:
        assert "a noisy update of 8 weights (k-closest): epsilon" in read(make_plan(study("ddml")))
        assert "a noisy update of 8 weights (discrete-laplace): epsilon" in read(make_plan(study("ddml", variant="paper")))

    def test_the_bytes_are_those_of_whole_messages(self) -> None:
        one, seven = (make_plan(study("ddml", privacy={"epsilon": 1.2, "n_updates": n})).statement() for n in (1, 7))
        update = Update(study=bytes(32), id=bytes(16), epoch=2**31, weights=Array.of(np.ones(8, np.int32)))
        draw = Draw(study=bytes(32), id=bytes(16))
        assert one.bytes is not None and len(encode(update)) + len(encode(draw)) <= one.bytes <= len(encode(update)) + len(encode(draw)) + 8
        assert seven.bytes == 7 * one.bytes
        assert one.leaves == "a model of 8 weights, changed by your rows and blurred by noise, once; no row"
        assert "up to 7 times" in seven.leaves

    def test_only_the_local_epsilon_is_claimed(self) -> None:
        plan = make_plan(study("ddml"))
        label = read(plan)
        assert "against everyone who sees an update, the coordinator included" in label
        assert "that your device has rows at all: drawing a model shows it" in label
        assert "0.45" not in label and "expect" not in label
        assert "the coordinator, every device that draws while your update is in the model, and everyone they show it to" in label
        assert "a loss of 0.45 epsilon to one who reads all 10 instances" in plan.notes[-1]
        assert "an expected loss, not a guarantee, and wrong for several weights (errata D-02, D-03)" in plan.notes[-1]
        assert "with 8 weights the first reader's may be 0.999 epsilon. Epsilon alone is claimed." in plan.notes[-1]

    def test_the_late_reader_comes_after_updates_to_that_instance(self) -> None:
        # 1 / (k sqrt(T)) with k = 10, T = 100: one update in k is of that instance.
        told = "of 0.01 epsilon to one who reads an instance after 100 further updates to that instance (1,000 or so in all)"
        assert told in make_plan(study("ddml")).notes[-1]

    def test_the_noise_of_an_update_is_told(self) -> None:
        spec = study("ddml", ddml={"n_instances": 10, "learning_rate": 0.5, "clip": 0.25}, privacy={"epsilon": 1.0, "unit": "weight"})
        note = make_plan(spec).notes[1]
        # Laplace noise of scale 2 gamma clip / epsilon.
        assert "is 0.354 in each weight (root mean square, discrete-laplace), at a learning rate of 0.5 and a clip of 0.25." in note

    def test_the_unit_weight_states_one_weight_of_one_update_and_charges_all(self) -> None:
        plan = make_plan(study("ddml", privacy={"epsilon": 1.2, "unit": "weight", "n_updates": 2}))
        assert plan.loss.scope.unit is Unit.WEIGHT and plan.loss.epsilon == pytest.approx(0.6)
        assert [event.epsilon for event in plan.charges] == [pytest.approx(4.8)] * 2
        assert {event.scope.unit for event in plan.charges} == {Unit.UPDATE}
        assert plan.to_dict()["total"] == plan.loss.to_dict() and plan.to_dict()["charged"] == plan.everything.to_dict()
        assert plan.everything.epsilon == pytest.approx(9.6) and plan.everything.scope.unit is Unit.UPDATE
        assert plan.notes[0].startswith("Everything you send: 8 weights of 2 updates, epsilon 9.6, which is what the ledger counts.")
        assert plan.notes[0].endswith(
            "Each weight of one update, seen by itself: epsilon 0.6. Such figures do not add up over updates (errata D-15)."
        )
        assert "2 x a noisy update, each of its 8 weights by itself (discrete-laplace): epsilon 0.6 each" in read(plan)
        whole = "epsilon 9.6, delta 0 for everything you send, against everyone who sees it (8 weights of 2 updates)"
        assert f"{whole} epsilon 0.6, delta 0 for each weight of one update, seen by itself" in read(plan)
        assert "what you send could move them to at most 100.0 of 100" in read(plan)
        assert plan.statement().everything[0] == plan.everything.epsilon

    def test_the_reader_of_one_number_sees_nothing_else(self) -> None:
        once, twice = (make_plan(study("ddml", privacy={"epsilon": 1.2, "unit": "weight", "n_updates": n})) for n in (1, 2))
        reader = "whoever sees this one number of one update and nothing else"
        assert once.loss.scope.adversary == reader and f"against {reader} Guarantee" in read(once)
        assert "weights of 1 update" in once.notes[0] and "add up" not in once.notes[0]
        assert twice.loss.scope.adversary == f"{reader}, if nothing of your earlier updates was in the model drawn for it"
        assert "against everyone who sees an update" not in read(once) + read(twice)

    def test_several_updates_are_spoken_of_as_several(self) -> None:
        one, several = (make_plan(study("ddml", privacy={"epsilon": 1.2, "n_updates": n})) for n in (1, 3))
        assert "everything that one model update reveals" in read(one)
        assert "everything that all your model updates reveal together" in read(several) and "one model update" not in read(several)
        assert several.everything == several.loss

    def test_rows_that_do_not_fit_keep_out(self) -> None:
        item = "whether your data fits the study's ranges and values: if not, you cannot take part, and that may be seen"
        assert all(item in read(make_plan(study(protocol))) for protocol in ("anonml", "ddml"))
        assert all(item not in read(make_plan(study(protocol))) for protocol in ("sdq", "pfds"))

    def test_gaussian_noise_is_priced_for_every_epoch(self) -> None:
        numbers = [{"name": f"x{i}", "range": [0, 1], "missing": False} for i in range(100)]
        settings = {"n_instances": 10, "decay": "sqrt", "fraction_bits": 16, "learning_rate": 1.0}
        plan = make_plan(study("ddml", feature=numbers, privacy={"epsilon": 64.0, "delta": 1e-4}, ddml=settings))
        assert plan.params is not None and plan.releases[0].event.mechanism == "discrete-gaussian"
        rho = plan.releases[0].event.rho
        rhos = [make_step(plan.params, epoch).event.rho for epoch in range(40)]  # type: ignore[union-attr]
        assert rho is not None and max(rhos) <= rho and rhos[0] < max(rhos)  # type: ignore[type-var]
        assert plan.charges == [price(plan.params)] and rho_to_epsilon(max(rhos), 1e-4) <= plan.loss.epsilon <= 64  # type: ignore[type-var,arg-type]

    def test_a_delta_is_kept_to(self) -> None:
        plan = make_plan(study("ddml", privacy={"epsilon": 1.2, "n_updates": 3, "delta": 1e-6}))
        assert plan.loss.delta <= 1e-6 and 1.1 < plan.loss.epsilon <= 1.2

    def test_a_step_below_the_grid_has_no_price(self) -> None:
        with pytest.raises(SpecError) as error:
            make_plan(study("ddml", variant="paper", ddml={"n_instances": 10, "learning_rate": 1e-6, "fraction_bits": 8}))
        assert error.value.code == "PLAN-001" and "fraction_bits" in str(error.value)

    def test_counts_of_rows_are_of_another_unit_and_refused(self) -> None:
        with pytest.raises(SpecError) as error:
            make_plan(study("ddml", queries=QUERIES))
        assert error.value.code == "PLAN-001"

    def test_the_settings_reach_the_parameters(self) -> None:
        settings = {"batch_size": 3, "decay": "sqrt", "fraction_bits": 18, "merge": "discard", "averaging": False, "centred": False}
        chosen = {"n_instances": 5, "learning_rate": 0.5, "clip": 2.0, "crosses": [["age", "height"]]}
        text = {"name": "note", "buckets": 50, "ngrams": 2}
        made = ddml_params(
            study(
                "ddml",
                feature=[*FEATURES, text],
                label={"name": "naps", "values": ["a", "b", "c"]},
                privacy={"epsilon": 1.2, "delta": 1e-6, "n_updates": 4},
                ddml={**settings, **chosen},
            )
        )
        assert (made.epsilon, made.delta, made.n_updates, made.size, made.unit, made.variant) == (1.2, 1e-6, 4, 10_000, "update", "plus")
        assert all(getattr(made, key) == value for key, value in settings.items())
        assert (made.n_instances, made.rates.learning_rate, made.rates.clip, made.crosses) == (5, 0.5, 2.0, (("age", "height"),))
        assert made.link == "multinomial" and made.schema.texts == (Text("note", 50, 2),)
        assert ddml_params(study("ddml", privacy={"epsilon": 1.2, "unit": "weight"}, variant="paper")).variant == "paper"


def test_a_budget_too_small_for_its_parts_is_refused() -> None:
    with pytest.raises(SpecError) as error:
        make_plan(study("sdq", variant="paper", privacy={"epsilon": 1e-9}))
    assert error.value.code == "PLAN-001"


def test_the_label_shows_the_budget_and_the_digest() -> None:
    label = make_plan(study("anonml")).statement(BudgetLine(4.0, 1.3, 2.5, "a year"), digest="7f3a-91c2-0be4")
    assert "7f3a-91c2-0be4" in str(label) and "epsilon 4.0 a year" in str(label)


def test_the_label_says_when_the_study_closes() -> None:
    assert "2031-01-31 12:00 UTC" in str(make_plan(parse(study_text("anonml"))).statement())
    assert make_plan(study("anonml")).statement().closes is None


def test_a_forecast_says_which_error_it_is() -> None:
    [forecast, *_] = make_plan(study("anonml", participation={"minimum": 1, "size": 1})).forecasts
    assert forecast.what.startswith("root mean square error (L2) of the shares in a table of") and "from 1 answer (" in forecast.what


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("variant", ["plus", "paper"])
def test_every_label_can_be_printed(protocol: str, variant: str) -> None:
    paper: dict[str, dict[str, Any]] = {
        "anonml": {"anonml": {"n_partitions": 1, "n_subsets": 1, "subset_size": 1}},
        "pfds": {"feature": [FEATURES[1], {"name": "height", "range": [0, 3], "missing": False}]},
    }
    more = paper.get(protocol, {}) if variant == "paper" else {}
    plan = make_plan(study(protocol, variant=variant, **more))
    assert "PRIVACY LABEL" in str(plan.statement()) and plan.statement().not_covered
    assert set(plan.to_dict()) == {"releases", "total", "charged", "central", "paper_epsilon", "forecasts", "notes"}
