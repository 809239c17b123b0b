"""Predictions about a study, compared with its script."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.messages.codec import encode
from shoal.protocols.anonml.analysis import (
    compute_kind_shares,
    packet_bytes,
    phase_names,
    report_bytes,
    summarise_questions,
    table_errors,
)
from shoal.protocols.anonml.messages import AnonMLAnswer, AnonMLPublication
from shoal.protocols.anonml.params import AnonMLPaperParams, AnonMLParams, AnonMLPlusParams
from shoal.protocols.anonml.plus import AnonMLPlusScript
from shoal.protocols.anonml.questions import choose_table_mechanism
from shoal.protocols.anonml.variants import make_script

LABEL = Categorical("ill", ["no", "yes"], missing=False)
SCHEMA = Schema(
    [
        Numeric("age", 17, 90),
        Categorical("sex", ["f", "m"], missing=False),
        Categorical("kind", ["a", "b", "c"]),
    ],
    label=LABEL,
)
CASES = {
    "bits": AnonMLPlusParams(SCHEMA, 0.5, 1000),
    "tables": AnonMLPlusParams(SCHEMA, 2.0, 1000),
    "grid": AnonMLPlusParams(SCHEMA, 4.0, 1000),
    "blocks": AnonMLPlusParams(SCHEMA, 8.0, 50_000),
    "shuffled": AnonMLPlusParams(SCHEMA, 1.0, 1000, trust="shuffled"),
    "paper": AnonMLPaperParams(SCHEMA, 2.0, 1000, n_partitions=4, n_subsets=1, subset_size=2),
    "bare": AnonMLPaperParams(SCHEMA, math.inf, 1000, n_partitions=4, n_subsets=1, subset_size=2),
}


@pytest.mark.parametrize(
    ("case", "placing", "rest"),
    [
        ("bits", 12, ("answers",)),
        ("blocks", 12, ("answers", "blocks")),
        ("shuffled", 0, ("answers",)),
        ("paper", 15, ("answers",)),
    ],
)
def test_phase_names_follow_script(case: str, placing: int, rest: tuple[str, ...]) -> None:
    script = make_script(CASES[case], b"")
    assert (
        phase_names(script) == ("placing",) * placing + rest
        and len(phase_names(script)) == script.n_phases
    )


def test_kind_shares_are_those_of_rule_and_sum_to_one() -> None:
    of = {
        name: compute_kind_shares(AnonMLPlusScript(params))
        for name, params in CASES.items()
        if isinstance(params, AnonMLPlusParams)
    }
    assert all(sum(found.values()) == 1 for found in of.values())
    assert of["tables"] == {"placing": Fraction(1, 25), "tables": Fraction(24, 25)} and of[
        "shuffled"
    ] == {"tables": 1}
    assert of["blocks"]["blocks"] == Fraction(24, 25) * Fraction(3, 10)
    assert (
        set(of["bits"]) == {"placing", "bits", "tables"}
        and of["bits"]["tables"] == Fraction(94, 100) / 3
    )


def test_table_errors_use_most_publishable_cut_points() -> None:
    script = make_script(CASES["tables"], b"")
    assert [script.max_cuts(number) for number in script.params.unbinned] == [4]
    forecast = {table.cells: table for table in table_errors(script, 1000)}
    # Four cuts make five bins, and missing; sex has two, kind three and missing; each with two
    # labels.
    assert set(forecast) == {12, 4, 8}
    assert all(table.answers == 320 for table in forecast.values())
    assert forecast[12].error == choose_table_mechanism(2.0, 12).expected_error(320)
    assert [table.error for table in table_errors(script, 1000)] == sorted(
        table.error for table in forecast.values()
    )


def test_summarise_questions_uses_public_cuts_without_placing() -> None:
    script = make_script(CASES["shuffled"], b"")
    [number] = [one.question for one in summarise_questions(script) if "age" in one.question.name]
    assert (
        number.n_cells
        == script.questions(0, script.publish(()))[0].n_cells
        == (script.max_cuts(script.params.unbinned[0]) + 2) * 2
    )


def test_table_errors_include_bits_as_two_cells_but_not_blocks() -> None:
    assert {table.cells for table in table_errors(make_script(CASES["bits"], b""), 1000)} == {2, 8}
    script = make_script(CASES["blocks"], b"")
    assert [
        one.question.n_cells for one in summarise_questions(script) if one.kind == "blocks"
    ] == [2 * 3**3]
    assert 2 * 3**3 not in {table.cells for table in table_errors(script, 1000)}


def test_paper_tables_are_answered_by_one_partition() -> None:
    tables = table_errors(make_script(CASES["paper"], b""), 1000)
    assert {table.answers for table in tables} == {250} and {table.cells for table in tables} <= {
        3 * 2 * 2,
        3 * 4 * 2,
        2 * 4 * 2,
    }


def test_table_errors_assume_one_answer_and_are_empty_without_noise() -> None:
    assert {table.answers for table in table_errors(make_script(CASES["tables"], b""), 1)} == {1}
    assert table_errors(make_script(CASES["bare"], b""), 1000) == []


@pytest.mark.parametrize("case", [name for name in CASES if name != "bare"])
def test_packet_bytes_bounds_every_packet(case: str) -> None:
    script, entropy = make_script(CASES[case], b""), SeededEntropy(1)
    largest = 0
    for one in summarise_questions(script):
        mechanism = one.question.mechanism
        assert mechanism is not None
        report = mechanism.encode(mechanism.report(0, entropy))
        assert len(report) == report_bytes(mechanism.name, mechanism.cardinality)
        packet = AnonMLAnswer(
            study=bytes(32), ticket=bytes(32), phase=one.phase, question=0, report=report
        )
        largest = max(largest, len(encode(packet)))
    assert largest <= packet_bytes(script) <= largest + 4


def test_packet_bytes_includes_question_number() -> None:
    many = Schema([Categorical(f"f{i}", ["a", "b"], missing=False) for i in range(30)], label=LABEL)
    few = Schema(many.features[:20], label=LABEL)
    # Numbers from 24 on take two bytes on the wire.
    assert (
        packet_bytes(make_script(AnonMLPlusParams(many, 2.0, 1000), b""))
        == packet_bytes(make_script(AnonMLPlusParams(few, 2.0, 1000), b"")) + 1
    )
    paper = [
        make_script(
            AnonMLPaperParams(few, 2.0, 1000, n_partitions=n, n_subsets=2, subset_size=1), b""
        )
        for n in (12, 13)
    ]
    assert packet_bytes(paper[1]) == packet_bytes(paper[0]) + 1


@pytest.mark.parametrize("params", CASES.values(), ids=CASES)
def test_largest_publication_is_valid(params: AnonMLParams) -> None:
    script = make_script(params, b"")
    numbers = {
        feature.name: feature
        for one in summarise_questions(script)
        for feature in getattr(one.question, "features", ())
    }
    if "age" in numbers:
        cuts = tuple(numbers["age"].bins)
        script.check_publication(
            script.n_phases - (2 if "blocks" in phase_names(script) else 1),
            AnonMLPublication(cuts=(cuts,)),
        )


def test_narrow_range_has_fewer_cut_points() -> None:
    narrow = Schema([Numeric("x", 1.0, 1.0 + 2**-51)], label=LABEL)
    [one] = summarise_questions(make_script(AnonMLPlusParams(narrow, 2.0, 1000), b""))
    assert one.question.n_cells == (2 + 1 + 1) * 2 or one.question.n_cells == (1 + 1 + 1) * 2


def test_packet_bytes_bounds_packets_of_many_medians() -> None:
    schema = Schema([Numeric(f"n{i}", 0, 1) for i in range(30)], label=LABEL)
    script = make_script(
        AnonMLPaperParams(schema, 8.0, 1000, n_partitions=1, n_subsets=1, subset_size=1), b""
    )
    packet = encode(
        AnonMLAnswer(
            study=bytes(32), ticket=bytes(32), phase=script.n_steps - 1, question=29, report=b"\x00"
        )
    )
    assert len(packet) <= packet_bytes(script)
