"""Plans of studies: releases, prices, forecasts, labels, and studies without a price."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from shoal.data.schema import Text
from shoal.errors import SpecError
from shoal.mechanisms.calibrate import choose_mechanism
from shoal.messages.base import Array
from shoal.messages.codec import encode
from shoal.privacy.accountant import compose_sequential, rho_to_epsilon
from shoal.privacy.amplification import amplify
from shoal.privacy.events import LOCAL_PERSON, Relation, Unit
from shoal.protocols.anonml.analysis import packet_bytes
from shoal.protocols.anonml.params import AnonMLPaperParams
from shoal.protocols.ddml.messages import DDMLDraw, DDMLUpdate
from shoal.protocols.ddml.noisy_step import make_step, price_update
from shoal.study.anonml import build_params, build_script
from shoal.study.ddml import build_params as ddml_params
from shoal.study.loader import parse_study_text
from shoal.study.manifest import Manifest
from shoal.study.plan import Plan, make_plan
from shoal.study.pricing import BudgetLine
from shoal.study.spec import Study
from shoal.study.starters import STARTER_PROTOCOLS, read_starter
from shoal.study.validation import parse_study

FEATURES: list[dict[str, Any]] = [
    {"name": "age", "range": [0, 120], "bins": [30, 60]},
    {"name": "kind", "values": ["a", "b", "c"], "missing": False},
    {"name": "height", "range": [0, 3]},
]
PAPER = {"n_partitions": 4, "n_subsets": 3, "subset_size": 1}
QUERIES = {"features": ["age", "kind"], "n_queries": 4, "epsilon_release": 0.25}


def make_study(protocol: str, /, **changes: Any) -> Study:
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
    own = {protocol: tables[protocol]} if protocol in tables else {}
    return parse_study({**base, **own, **changes})


def list_prices(plan: Plan) -> list[tuple[str, int, float]]:
    return [
        (release.event.mechanism, release.count, release.event.epsilon) for release in plan.releases
    ]


def read_label(plan: Plan) -> str:
    """Return the text of the label without its box."""
    return " ".join(str(plan.make_statement()).replace("│", " ").split())


@pytest.mark.parametrize("protocol", STARTER_PROTOCOLS)
def test_starter_studies_spend_their_stated_epsilon(protocol: str) -> None:
    spec = parse_study_text(read_starter(protocol))
    plan = make_plan(spec)
    assert (
        plan.loss.epsilon == pytest.approx(spec.privacy.epsilon, abs=1e-9)
        and plan.loss.epsilon <= spec.privacy.epsilon
    )
    assert plan.loss.delta == 0 and plan.loss.scope.unit is spec.unit
    assert plan.charges == plan.events and plan.central_loss is None


class TestAnonML:
    def test_plus_releases_one_answer_with_the_whole_budget(self) -> None:
        plan = make_plan(make_study("anonml"))
        [(_, count, epsilon)] = list_prices(plan)
        assert count == 1 and epsilon == pytest.approx(1.2, abs=1e-12) and epsilon <= 1.2
        assert plan.loss.scope == LOCAL_PERSON
        assert plan.releases[0].event.reads == ("age", "height", "kind", "naps")

    def test_label_of_plus_names_one_packet_and_its_questions(self) -> None:
        label = make_plan(make_study("anonml")).make_statement()
        assert label.leaves.startswith(
            "one packet: a ticket without your name, the number of one question, and a "
            "randomised answer."
        )
        assert (
            label.leaves.endswith(". Nothing else about you leaves")
            and "above a given point" in label.leaves
        )
        assert "the bin of one of your features" in label.leaves and "levels" not in label.leaves
        binned = make_plan(make_study("anonml", feature=FEATURES[:2])).make_statement().leaves
        assert "above a given point" not in binned and "the bin of one of your features" in binned
        blocks = make_study(
            "anonml", privacy={"epsilon": 8.0}, participation={"minimum": 10, "size": 10**6}
        )
        assert "levels of a few of your features" in make_plan(blocks).make_statement().leaves

    def test_notes_say_which_questions_people_answer(self) -> None:
        assert make_plan(make_study("anonml", privacy={"epsilon": 2.0})).notes == (
            "Everyone answers one question: 4 % of the people place quantiles, 96 % answer tables "
            "of one feature and the label.",
        )
        paper = make_plan(make_study("anonml", variant="paper", anonml=PAPER)).notes[0]
        assert paper == (
            "Everyone is in one of 4 partitions and answers 3 tables of 1 feature and the label, "
            "and one bit about the median of each of 1 number."
        )
        binned = make_plan(
            make_study(
                "anonml", variant="paper", anonml={**PAPER, "n_subsets": 2}, feature=FEATURES[:2]
            )
        ).notes[0]
        assert (
            binned
            == "Everyone is in one of 4 partitions and answers 2 tables of 1 feature and the "
            "label."
        )

    def test_label_bytes_count_whole_packets(self) -> None:
        plan = make_plan(make_study("anonml"))
        assert (
            plan.script is not None
            and plan.make_statement().bytes == packet_bytes(plan.script) > 64
        )
        # Four more answers about at most four cells, a byte each.
        assert (
            make_plan(make_study("anonml", queries=QUERIES)).make_statement().bytes
            == packet_bytes(plan.script) + 4
        )
        paper = make_plan(make_study("anonml", variant="paper", anonml=PAPER))
        assert paper.script is not None and paper.make_statement().bytes == 4 * packet_bytes(
            paper.script
        )
        assert (
            paper.make_statement().leaves.startswith("4 packets, each with a ticket")
            and "All packets have the same ticket" in paper.make_statement().leaves
        )
        one = (
            make_plan(
                make_study(
                    "anonml",
                    variant="paper",
                    anonml={**PAPER, "n_subsets": 1},
                    feature=FEATURES[:2],
                )
            )
            .make_statement()
            .leaves
        )
        assert one.startswith("1 packet, each with") and "same ticket" not in one

    def test_subsets_of_paper_follow_from_the_digest(self) -> None:
        spec = make_study(
            "anonml",
            variant="paper",
            anonml={"n_partitions": 1, "n_subsets": 1, "subset_size": 1},
            feature=FEATURES[:2],
        )
        forecasts = {
            tuple(forecast.value for forecast in make_plan(spec, bytes([i] * 32)).forecasts)
            for i in range(20)
        }
        assert len(forecasts) == 2
        assert make_plan(spec).forecasts == make_plan(spec, Manifest(spec).digest).forecasts

    @pytest.mark.parametrize("more", [{}, {"variant": "paper", "anonml": PAPER}])
    def test_plan_charges_equal_prices_of_the_protocol(self, more: dict[str, Any]) -> None:
        spec, digest = make_study("anonml", **more), bytes(range(32))
        plan = make_plan(spec, digest)
        prices = build_script(spec, digest).prices
        assert sorted(map(repr, plan.events)) == sorted(map(repr, prices.values()))
        assert (
            compose_sequential(plan.charges)
            == plan.loss
            == compose_sequential(list(prices.values()))
        )

    def test_plus_forecasts_the_error_of_equation_4(self) -> None:
        plan = make_plan(make_study("anonml", privacy={"epsilon": 2.0}))
        n = 3_200  # a third of the 96 % who answer tables
        # age has three bins and missing, kind three, height at most four cuts and missing; each
        # has two labels.
        assert [forecast.value for forecast in plan.forecasts] == [
            choose_mechanism(2.0, cells, n).expected_error(n) for cells in (6, 8, 12)
        ]

    def test_paper_splits_the_budget_among_tables_and_medians(self) -> None:
        plan = make_plan(make_study("anonml", variant="paper", anonml=PAPER))
        medians, tables = plan.releases
        assert (tables.count, medians.count) == (3, 1)
        assert tables.event.epsilon == pytest.approx(
            0.3
        ) and medians.event.epsilon == pytest.approx(0.3)
        assert medians.event.reads == ("height",)
        assert plan.loss.epsilon == pytest.approx(1.2) and plan.loss.epsilon <= 1.2
        # Equation 6: one feature spends 0.6 (its table and its median), the label 0.9 (three
        # tables).
        assert plan.to_dict()["paper_epsilon"] == pytest.approx(0.9)
        assert plan.make_statement().paper_epsilon == pytest.approx(0.9)

    def test_paper_accounting_is_shown_with_the_larger_real_epsilon(self) -> None:
        plan = make_plan(
            make_study("anonml", variant="paper", anonml={**PAPER, "accounting": "paper"})
        )
        assert [release.event.epsilon for release in plan.releases] == [pytest.approx(0.4)] * 2
        assert plan.make_statement().paper_epsilon == pytest.approx(1.2)
        assert plan.loss.epsilon == pytest.approx(1.6)
        assert "1.2" in plan.notes[1] and "1.6" in plan.notes[1]
        assert "plain sum of 4 releases" in str(
            plan.make_statement()
        ) and "own accounting: epsilon 1.2" in str(plan.make_statement())

    def test_equation_6_for_one_table_and_one_median(self) -> None:
        settings = {"n_partitions": 1, "n_subsets": 1, "subset_size": 3, "accounting": "paper"}
        plan = make_plan(make_study("anonml", variant="paper", anonml=settings))
        assert [release.name for release in plan.releases] == [
            "a perturbed bit for the median of height",
            "a perturbed table of 3 features and the label",
        ]
        assert [release.event.epsilon for release in plan.releases] == [pytest.approx(0.6)] * 2
        assert plan.releases[1].event.parameters["cardinality"] == 72
        assert plan.make_statement().paper_epsilon == pytest.approx(1.2)

    def test_declared_bins_need_no_median(self) -> None:
        plan = make_plan(
            make_study(
                "anonml", variant="paper", anonml={**PAPER, "n_subsets": 2}, feature=FEATURES[:2]
            )
        )
        [tables] = plan.releases
        assert tables.count == 2 and tables.event.epsilon == pytest.approx(0.6)
        both = [
            choose_mechanism(tables.event.epsilon, cells, 2500, ("random-response", "rappor", "pq"))
            for cells in (6, 8)
        ]
        assert [forecast.value for forecast in plan.forecasts] == [
            pytest.approx(table.expected_error(2500)) for table in both
        ]

    def test_build_params_copies_settings_of_paper(self) -> None:
        params = build_params(
            make_study(
                "anonml",
                variant="paper",
                anonml={**PAPER, "classifier": "tree", "score": "auc", "accounting": "paper"},
            )
        )
        assert isinstance(params, AnonMLPaperParams)
        assert (params.classifier, params.score, params.accounting, params.n_partitions) == (
            "tree",
            "auc",
            "paper",
            4,
        )
        assert build_params(
            make_study("anonml", variant="paper", anonml=PAPER)
        ) == AnonMLPaperParams(params.schema, 1.2, 10_000, 4, 3, 1)

    def test_plan_rejects_tables_with_too_many_cells(self) -> None:
        wide = [{"name": f"f{i}", "values": [str(v) for v in range(1000)]} for i in range(4)]
        with pytest.raises(SpecError) as error:
            make_plan(
                make_study(
                    "anonml",
                    variant="paper",
                    anonml={"n_partitions": 1, "n_subsets": 1, "subset_size": 4},
                    feature=wide,
                )
            )
        assert error.value.code == "PLAN-001" and "cardinality" in error.value.what

    def test_free_questions_add_to_epsilon(self) -> None:
        plan = make_plan(make_study("anonml", queries=QUERIES))
        assert plan.loss.epsilon == pytest.approx(2.2)
        assert plan.releases[1].count == 4 and plan.releases[1].event.reads == ("age", "kind")
        assert (
            "; and up to 4 randomised answers to free questions. Nothing else"
            in plan.make_statement().leaves
        )

    @pytest.mark.parametrize("protocol", ["anonml", "sdq"])
    def test_free_counts_need_bins_for_numbers(self, protocol: str) -> None:
        with pytest.raises(SpecError) as error:
            make_plan(make_study(protocol, queries={**QUERIES, "features": ["height"]}))
        assert error.value.code == "PLAN-001" and error.value.fix == "Give height bins = [...]"

    def test_shuffled_plan_amplifies_by_smallest_honest_batch(self) -> None:
        spec = make_study(
            "anonml",
            trust="shuffled",
            privacy={"epsilon": 1.0, "delta": 1e-6},
            participation={"minimum": 5_001, "size": 50_000, "honest_share": 0.9},
        )
        plan = make_plan(spec)
        assert plan.min_honest_batch == 4_500 and plan.loss.epsilon == 1.0 and plan.loss.delta == 0
        central = plan.central_loss
        assert central is not None and 0 < central.delta <= 1e-6
        assert central.epsilon == pytest.approx(amplify(1.0, 4_500, 1e-6), rel=1e-3)
        assert central.epsilon >= amplify(1.0, 4_500, 1e-6) * (1 - 1e-9)
        label = plan.make_statement()
        assert label.shuffled is not None and label.shuffled.n == 4_500 and label.epsilon == 1.0


class TestDDML:
    def test_updates_share_the_budget_equally(self) -> None:
        plan = make_plan(make_study("ddml", privacy={"epsilon": 1.2, "n_updates": 7}))
        [(_, count, epsilon)] = list_prices(plan)
        assert (
            count == 7
            and epsilon <= math.floor(1.2e12 / 7) / 1e12
            and epsilon == pytest.approx(1.2 / 7)
        )
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
    def test_plan_charges_equal_prices_of_the_protocol(self, changes: dict[str, Any]) -> None:
        spec = make_study("ddml", **changes)
        assert make_plan(spec).charges == [price_update(ddml_params(spec))] * spec.privacy.n_updates

    def test_label_names_the_mechanism_of_an_update(self) -> None:
        assert "a noisy update of 8 weights (k-closest): epsilon" in read_label(
            make_plan(make_study("ddml"))
        )
        assert "a noisy update of 8 weights (discrete-laplace): epsilon" in read_label(
            make_plan(make_study("ddml", variant="paper"))
        )

    def test_label_bytes_count_whole_messages(self) -> None:
        one, seven = (
            make_plan(make_study("ddml", privacy={"epsilon": 1.2, "n_updates": n})).make_statement()
            for n in (1, 7)
        )
        update = DDMLUpdate(
            study=bytes(32),
            id=bytes(16),
            epoch=2**31,
            weights=Array.from_values(np.ones(8, np.int32)),
        )
        draw = DDMLDraw(study=bytes(32), id=bytes(16))
        assert (
            one.bytes is not None
            and len(encode(update)) + len(encode(draw))
            <= one.bytes
            <= len(encode(update)) + len(encode(draw)) + 8
        )
        assert seven.bytes == 7 * one.bytes
        assert (
            one.leaves == "a model of 8 weights, changed by your rows and blurred by random noise, "
            "once. None of your rows leaves"
        )
        assert "up to 7 times" in seven.leaves

    def test_label_claims_only_the_local_epsilon(self) -> None:
        plan = make_plan(make_study("ddml"))
        label = read_label(plan)
        assert "against everyone who sees an update, the coordinator included" in label
        assert "that your device has rows at all: requesting a model shows it" in label
        assert "0.45" not in label and "expect" not in label
        assert (
            "the coordinator, each device that receives a model with your update in it, and anyone "
            "to whom they pass it on" in label
        )
        assert "a loss of 0.45 epsilon to a reader of all 10 instances" in plan.notes[-1]
        assert (
            "expected losses, not guarantees, and wrong for several weights (errata D-02, D-03)"
            in plan.notes[-1]
        )
        assert (
            "with 8 weights the first reader's loss may be 0.999 epsilon. shoal claims epsilon "
            "alone." in plan.notes[-1]
        )

    def test_note_gives_loss_to_a_late_reader_of_one_instance(self) -> None:
        # 1 / (k sqrt(T)) with k = 10, T = 100: one update in k is of that instance.
        told = (
            "of 0.01 epsilon to a reader of an instance after 100 further updates to it (about "
            "1,000 in all)"
        )
        assert told in make_plan(make_study("ddml")).notes[-1]

    def test_note_gives_the_noise_of_an_update(self) -> None:
        spec = make_study(
            "ddml",
            ddml={"n_instances": 10, "learning_rate": 0.5, "clip": 0.25},
            privacy={"epsilon": 1.0, "unit": "weight"},
        )
        note = make_plan(spec).notes[1]
        # Laplace noise of scale 2 gamma clip / epsilon.
        assert (
            "is 0.354 in each weight (root mean square, discrete-laplace), at a learning rate of "
            "0.5 and a clip of 0.25." in note
        )

    def test_unit_weight_states_one_weight_and_charges_all_weights(self) -> None:
        plan = make_plan(
            make_study("ddml", privacy={"epsilon": 1.2, "unit": "weight", "n_updates": 2})
        )
        assert plan.loss.scope.unit is Unit.WEIGHT and plan.loss.epsilon == pytest.approx(0.6)
        assert [event.epsilon for event in plan.charges] == [pytest.approx(4.8)] * 2
        assert {event.scope.unit for event in plan.charges} == {Unit.UPDATE}
        assert (
            plan.to_dict()["total"] == plan.loss.to_dict()
            and plan.to_dict()["charged"] == plan.total_loss.to_dict()
        )
        assert (
            plan.total_loss.epsilon == pytest.approx(9.6)
            and plan.total_loss.scope.unit is Unit.UPDATE
        )
        assert plan.notes[0].startswith(
            "Everything you send: 8 weights of 2 updates, epsilon 9.6. The ledger counts this."
        )
        assert plan.notes[0].endswith(
            "Each weight of one update, seen alone: epsilon 0.6. Such figures do not add up "
            "over updates (errata D-15)."
        )
        assert (
            "2 x a noisy update, each of its 8 weights alone (discrete-laplace): epsilon 0.6 "
            "each" in read_label(plan)
        )
        whole = (
            "epsilon 9.6, delta 0 for everything you send, against everyone who sees it (8 "
            "weights of 2 updates)"
        )
        assert (
            f"{whole} epsilon 0.6, delta 0 for each weight of one update, seen alone"
            in read_label(plan)
        )
        assert "what you send can raise it to at most 100.0 of 100" in read_label(plan)
        assert plan.make_statement().everything[0] == plan.total_loss.epsilon

    def test_unit_weight_limits_the_adversary_to_one_number(self) -> None:
        once, twice = (
            make_plan(
                make_study("ddml", privacy={"epsilon": 1.2, "unit": "weight", "n_updates": n})
            )
            for n in (1, 2)
        )
        reader = "whoever sees this one number of one update and nothing else"
        assert once.loss.scope.adversary == reader and f"against {reader} Guarantee" in read_label(
            once
        )
        assert "weights of 1 update" in once.notes[0] and "add up" not in once.notes[0]
        assert (
            twice.loss.scope.adversary
            == f"{reader}, if nothing of your earlier updates was in the model drawn for it"
        )
        assert "against everyone who sees an update" not in read_label(once) + read_label(twice)

    def test_label_distinguishes_one_update_from_several(self) -> None:
        one, several = (
            make_plan(make_study("ddml", privacy={"epsilon": 1.2, "n_updates": n})) for n in (1, 3)
        )
        assert "everything that one model update reveals" in read_label(one)
        assert "everything that all your model updates reveal together" in read_label(
            several
        ) and "one model update" not in read_label(several)
        assert several.total_loss == several.loss

    @pytest.mark.parametrize("protocol", ["anonml", "ddml", "sdq", "pfds"])
    def test_label_of_strict_study_says_what_exclusion_reveals(self, protocol: str) -> None:
        item = {
            True: "whether all your rows fit the study's ranges and values: a single row that does "
            "not keeps your organisation out, and others may notice",
            False: "whether your data fits the study's ranges and values: if not, you cannot take "
            "part, and others may notice",
        }[protocol in ("sdq", "pfds")]
        assert item in read_label(make_plan(make_study(protocol, strict=True)))
        label = read_label(make_plan(make_study(protocol)))
        assert item not in label
        assert ("Numbers outside a range are moved to its end" in label) is (
            protocol in ("anonml", "ddml")
        )

    def test_gaussian_price_covers_every_epoch(self) -> None:
        numbers = [{"name": f"x{i}", "range": [0, 1], "missing": False} for i in range(100)]
        settings = {"n_instances": 10, "decay": "sqrt", "fraction_bits": 16, "learning_rate": 1.0}
        plan = make_plan(
            make_study(
                "ddml", feature=numbers, privacy={"epsilon": 64.0, "delta": 1e-4}, ddml=settings
            )
        )
        assert plan.params is not None and plan.releases[0].event.mechanism == "discrete-gaussian"
        rho = plan.releases[0].event.rho
        rhos = [make_step(plan.params, epoch).event.rho for epoch in range(40)]  # type: ignore[union-attr]
        assert rho is not None and max(rhos) <= rho and rhos[0] < max(rhos)  # type: ignore[type-var]
        assert (
            plan.charges == [price_update(plan.params)]
            and rho_to_epsilon(max(rhos), 1e-4) <= plan.loss.epsilon <= 64
        )  # type: ignore[type-var,arg-type]

    def test_plan_spends_at_most_the_delta_of_the_study(self) -> None:
        plan = make_plan(
            make_study("ddml", privacy={"epsilon": 1.2, "n_updates": 3, "delta": 1e-6})
        )
        assert plan.loss.delta <= 1e-6 and 1.1 < plan.loss.epsilon <= 1.2

    def test_plan_rejects_steps_below_the_grid(self) -> None:
        with pytest.raises(SpecError) as error:
            make_plan(
                make_study(
                    "ddml",
                    variant="paper",
                    ddml={"n_instances": 10, "learning_rate": 1e-6, "fraction_bits": 8},
                )
            )
        assert error.value.code == "PLAN-001" and "fraction_bits" in str(error.value)

    def test_plan_of_ddml_rejects_free_counts(self) -> None:
        with pytest.raises(SpecError) as error:
            make_plan(make_study("ddml", queries=QUERIES))
        assert error.value.code == "PLAN-001"

    def test_build_params_copies_settings_of_ddml(self) -> None:
        settings = {
            "batch_size": 3,
            "decay": "sqrt",
            "fraction_bits": 18,
            "merge": "discard",
            "averaging": False,
            "centred": False,
        }
        chosen = {
            "n_instances": 5,
            "learning_rate": 0.5,
            "clip": 2.0,
            "crosses": [["age", "height"]],
        }
        text = {"name": "note", "buckets": 50, "ngrams": 2}
        made = ddml_params(
            make_study(
                "ddml",
                feature=[*FEATURES, text],
                label={"name": "naps", "values": ["a", "b", "c"]},
                privacy={"epsilon": 1.2, "delta": 1e-6, "n_updates": 4},
                ddml={**settings, **chosen},
            )
        )
        assert (made.epsilon, made.delta, made.n_updates, made.size, made.unit, made.variant) == (
            1.2,
            1e-6,
            4,
            10_000,
            "update",
            "plus",
        )
        assert all(getattr(made, key) == value for key, value in settings.items())
        assert (made.n_instances, made.rates.learning_rate, made.rates.clip, made.crosses) == (
            5,
            0.5,
            2.0,
            (("age", "height"),),
        )
        assert made.link == "multinomial" and made.schema.texts == (Text("note", 50, 2),)
        assert (
            ddml_params(
                make_study("ddml", privacy={"epsilon": 1.2, "unit": "weight"}, variant="paper")
            ).variant
            == "paper"
        )


def test_plan_rejects_epsilon_too_small_to_divide() -> None:
    with pytest.raises(SpecError) as error:
        make_plan(make_study("sdq", variant="paper", privacy={"epsilon": 1e-9}))
    assert error.value.code == "PLAN-001"


def test_label_shows_budget_and_digest() -> None:
    label = make_plan(make_study("anonml")).make_statement(
        BudgetLine(4.0, 1.3, 2.5, "a year"), digest="7f3a-91c2-0be4"
    )
    assert "7f3a-91c2-0be4" in str(label) and "epsilon 4.0 a year" in str(label)


def test_label_shows_the_closing_time() -> None:
    assert "2031-01-31 12:00 UTC" in str(
        make_plan(parse_study_text(read_starter("anonml"))).make_statement()
    )
    assert make_plan(make_study("anonml")).make_statement().closes is None


def test_forecast_names_its_error() -> None:
    [forecast, *_] = make_plan(
        make_study("anonml", participation={"minimum": 1, "size": 1})
    ).forecasts
    assert (
        forecast.what.startswith("root mean square error (L2) of the shares in a table of")
        and "from 1 answer (" in forecast.what
    )


@pytest.mark.parametrize("protocol", STARTER_PROTOCOLS)
@pytest.mark.parametrize("variant", ["plus", "paper"])
def test_label_of_every_protocol_and_variant_is_printed(protocol: str, variant: str) -> None:
    paper: dict[str, dict[str, Any]] = {
        "anonml": {"anonml": {"n_partitions": 1, "n_subsets": 1, "subset_size": 1}},
        "pfds": {"feature": [FEATURES[1], {"name": "height", "range": [0, 3], "missing": False}]},
    }
    more = paper.get(protocol, {}) if variant == "paper" else {}
    plan = make_plan(make_study(protocol, variant=variant, **more))
    assert "PRIVACY LABEL" in str(plan.make_statement()) and plan.make_statement().not_covered
    assert set(plan.to_dict()) == {
        "releases",
        "total",
        "charged",
        "central",
        "paper_epsilon",
        "forecasts",
        "notes",
    }
