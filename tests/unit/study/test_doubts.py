"""Loud warnings: too few to learn from, or too late to join. Each with a figure."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from shoal.study.doubts import doubts
from shoal.study.load import parse
from shoal.study.plan import make_plan
from shoal.study.templates import PROTOCOLS, study_text

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def doubted(protocol: str, *edits: tuple[str, str], now: datetime = NOW) -> tuple[str, ...]:
    text = study_text(protocol)
    for old, new in edits:
        assert old in text
        text = text.replace(old, new, 1)
    return doubts(make_plan(parse(text)), now)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_starter_studies_are_beyond_doubt(protocol: str) -> None:
    assert doubted(protocol) == ()


def test_too_few_people_are_doubted_with_the_error() -> None:
    [doubt] = doubted("anonml", ("minimum = 2000", "minimum = 1"), ("size = 20000", "size = 1"))
    assert "minimum of 1 participant most" in doubt and "from 1 answer (" in doubt and "is 2.25; a result is of use below 0.5" in doubt


def test_the_minimum_counts_because_it_may_be_all_who_come() -> None:
    [doubt] = doubted("anonml", ("minimum = 2000", "minimum = 20"))
    assert "20 participants" in doubt and "from 5 answers" in doubt


def test_noise_in_some_tables_only_is_said_to_be_that() -> None:
    [doubt] = doubted("anonml", ("minimum = 2000", "minimum = 60"))
    assert "minimum of 60 participants some of the result is mostly noise" in doubt and "from 15 answers" in doubt


PAPER = ('variant = "plus"', 'variant = "paper"'), ("[privacy]", "[anonml]\nn_partitions = 2\nn_subsets = 1\nsubset_size = 2\n[privacy]")


def test_the_papers_variant_is_forecast_alike() -> None:
    assert doubted("anonml", *PAPER) == ()
    assert len(doubted("anonml", *PAPER, ("minimum = 2000", "minimum = 4"))) == 1


@pytest.mark.parametrize(("protocol", "size"), [("sdq", "size = 20000"), ("pfds", "size = 40000")])
def test_too_few_rows_are_doubted(protocol: str, size: str) -> None:
    [doubt] = doubted(protocol, (size, "size = 25"))
    assert "At the declared size" in doubt and "a result is of use below" in doubt


def test_too_few_devices_are_doubted() -> None:
    [doubt] = doubted("ddml", ("size = 50000", "size = 1000"), ("epsilon = 4.0", "epsilon = 0.5"))
    assert "At the declared size most of the result is noise: noise of a weight per unit" in doubt
    assert "after 1,000 updates of 29 weights" in doubt and "a result is of use below 2.0." in doubt


@pytest.mark.parametrize(
    ("protocol", "edit"),
    [
        ("anonml", ("epsilon = ", "epsilon = 10.0 #")),
        ("sdq", ("epsilon = 1.0", "epsilon = 10.0")),
        ("pfds", ("epsilon = 1.0", "epsilon = 12.5")),
        ("ddml", ('unit = "update"', 'unit = "weight"')),
    ],
)
def test_what_protects_next_to_nothing_is_doubted(protocol: str, edit: tuple[str, str]) -> None:
    doubt = doubted(protocol, edit)[0]
    assert doubt.startswith("Epsilon 1") and " in all: this protects next to nothing; " in doubt and "moved to 100.0 of 100" in doubt


def test_free_counts_add_to_what_is_doubted() -> None:
    queries = '[queries]\nfeatures = ["ward"]\nn_queries = 9\nepsilon_release = 1.0\n'
    assert doubted("sdq", ("[privacy]", f"{queries}[privacy]"))[0].startswith("Epsilon 10.0 in all")
    assert doubted("sdq", ("[privacy]", f"{queries.replace('9', '8')}[privacy]")) == ()


def test_a_study_that_is_over_is_doubted() -> None:
    closes = datetime(2031, 1, 31, 12, tzinfo=UTC)
    assert doubted("anonml", now=closes.replace(hour=11)) == ()
    assert doubted("anonml", now=closes) == ("The study closed on 2031-01-31 12:00 UTC, 0 days ago: nobody can join it any more.",)
    assert "1 day ago" in doubted("anonml", now=closes.replace(month=2, day=1))[0]
