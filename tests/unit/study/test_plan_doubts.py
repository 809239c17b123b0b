"""Warnings of a plan, each with a figure: too few participants, or a closed study."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from shoal.study.loader import parse_study_text
from shoal.study.plan import find_warnings, make_plan
from shoal.study.starters import STARTER_PROTOCOLS, read_starter

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def find_starter_warnings(
    protocol: str, *edits: tuple[str, str], now: datetime = NOW
) -> tuple[str, ...]:
    text = read_starter(protocol)
    for old, new in edits:
        assert old in text
        text = text.replace(old, new, 1)
    return find_warnings(make_plan(parse_study_text(text)), now)


@pytest.mark.parametrize("protocol", STARTER_PROTOCOLS)
def test_starter_studies_have_no_warnings(protocol: str) -> None:
    assert find_starter_warnings(protocol) == ()


def test_warning_about_too_few_people_gives_the_error() -> None:
    [warning] = find_starter_warnings(
        "anonml", ("minimum = 2000", "minimum = 1"), ("size = 20000", "size = 1")
    )
    assert (
        "minimum of 1 participant most" in warning
        and "from 1 answer (" in warning
        and "is 2.25; a result is useful below 0.5" in warning
    )


def test_warning_uses_minimum_of_participants() -> None:
    [warning] = find_starter_warnings("anonml", ("minimum = 2000", "minimum = 20"))
    assert "20 participants" in warning and "from 5 answers" in warning


def test_warning_says_if_only_some_tables_are_noise() -> None:
    [warning] = find_starter_warnings("anonml", ("minimum = 2000", "minimum = 60"))
    assert (
        "minimum of 60 participants some of the result is mostly noise" in warning
        and "from 15 answers" in warning
    )


PAPER = (
    ('variant = "plus"', 'variant = "paper"'),
    ("[privacy]", "[anonml]\nn_partitions = 2\nn_subsets = 1\nsubset_size = 2\n[privacy]"),
)


def test_paper_variant_warns_of_too_few_people() -> None:
    assert find_starter_warnings("anonml", *PAPER) == ()
    assert len(find_starter_warnings("anonml", *PAPER, ("minimum = 2000", "minimum = 4"))) == 1


@pytest.mark.parametrize(("protocol", "size"), [("sdq", "size = 20000"), ("pfds", "size = 40000")])
def test_warning_about_too_few_rows(protocol: str, size: str) -> None:
    [warning] = find_starter_warnings(protocol, (size, "size = 25"))
    assert "At the declared size" in warning and "a result is useful below" in warning


def test_warning_about_too_few_devices() -> None:
    [warning] = find_starter_warnings(
        "ddml", ("size = 50000", "size = 1000"), ("epsilon = 4.0", "epsilon = 0.5")
    )
    assert "At the declared size most of the result is noise: noise in a weight per unit" in warning
    assert (
        "after 1,000 updates of 29 weights" in warning
        and "a result is useful below 2.0." in warning
    )


@pytest.mark.parametrize(
    ("protocol", "edit"),
    [
        ("anonml", ("epsilon = ", "epsilon = 10.0 #")),
        ("sdq", ("epsilon = 1.0", "epsilon = 10.0")),
        ("pfds", ("epsilon = 1.0", "epsilon = 12.5")),
        ("ddml", ('unit = "update"', 'unit = "weight"')),
    ],
)
def test_warning_about_epsilon_that_protects_almost_nothing(
    protocol: str, edit: tuple[str, str]
) -> None:
    warning = find_starter_warnings(protocol, edit)[0]
    assert (
        warning.startswith("A total epsilon of 1")
        and " protects almost nothing: " in warning
        and "rise to 100.0 of 100" in warning
    )


def test_warning_about_epsilon_includes_free_counts() -> None:
    queries = '[queries]\nfeatures = ["ward"]\nn_queries = 9\nepsilon_release = 1.0\n'
    assert find_starter_warnings("sdq", ("[privacy]", f"{queries}[privacy]"))[0].startswith(
        "A total epsilon of 10.0"
    )
    assert (
        find_starter_warnings("sdq", ("[privacy]", f"{queries.replace('9', '8')}[privacy]")) == ()
    )


def test_warning_about_a_closed_study() -> None:
    closes = datetime(2031, 1, 31, 12, tzinfo=UTC)
    assert find_starter_warnings("anonml", now=closes.replace(hour=11)) == ()
    assert find_starter_warnings("anonml", now=closes) == (
        "The study closed on 2031-01-31 12:00 UTC, 0 days ago: no one can join it any more.",
    )
    assert "1 day ago" in find_starter_warnings("anonml", now=closes.replace(month=2, day=1))[0]
