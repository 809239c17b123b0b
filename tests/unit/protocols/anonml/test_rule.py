"""The rule looks at public figures only, and what it chooses can be asked."""

from __future__ import annotations

from dataclasses import fields

import pytest

from shoal.domain import Categorical, Numeric, Schema
from shoal.protocols.anonml.params import Plus
from shoal.protocols.anonml.rule import Rule, block_size, choose


def params(epsilon: float, size: int = 1000, j: int = 6, n_labels: int = 2, *, binned: bool = False, trust: str = "local") -> Plus:
    features = [Numeric(f"x{i}", 0, 1, bins=[0.5] if binned else None) for i in range(j)]
    return Plus(Schema(features, label=Categorical("y", [f"c{i}" for i in range(n_labels)])), epsilon, size, trust=trust)  # type: ignore[arg-type]


def test_ranges_and_names_make_no_difference() -> None:
    """Epsilon, size, number of features and classes, trust, and whether bins are public: nothing else may be looked at."""
    for epsilon in (0.5, 2.0, 4.0, 8.0):
        other = Plus(Schema([Categorical("a", ["u", "v"]), *(Numeric(f"z{i}", -9, 1e6) for i in range(5))],
                            label=Categorical("w", ["no", "yes"])), epsilon, 1000)  # fmt: skip
        assert choose(params(epsilon)) == choose(other)


def test_small_budgets_are_spent_on_single_bits() -> None:
    rule = choose(params(0.5))
    assert rule.is_one_bit
    assert not rule.has_lowest and rule.grid is None and not rule.blocks
    assert len(rule.targets) == 1


def test_single_bits_are_for_two_classes_and_few_people() -> None:
    assert not choose(params(0.5, n_labels=3)).is_one_bit
    assert not choose(params(0.5, size=10**7)).is_one_bit
    assert not choose(params(4.0)).is_one_bit


def test_large_budgets_and_many_people_have_blocks() -> None:
    rule = choose(params(8.0, size=100_000))
    assert 0 < rule.blocks < 1
    assert 2 <= rule.block_size <= 6
    assert not choose(params(8.0, size=10)).blocks
    assert not choose(params(8.0, size=100_000, n_labels=3)).blocks
    assert not choose(params(8.0, size=100_000, j=1)).blocks
    assert not choose(params(2.0, size=100_000)).blocks


def test_shuffled_people_are_one_crowd() -> None:
    for epsilon in (0.5, 2.0, 8.0):
        rule = choose(params(epsilon, size=100_000, trust="shuffled"))
        assert (rule.placing, rule.blocks, rule.is_one_bit, rule.targets) == (0, 0, False, ())
        assert rule.grid is not None


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 20.0])
@pytest.mark.parametrize("j", [1, 2, 6, 19, 20, 300])
@pytest.mark.parametrize("size", [1, 1000, 10**6])
def test_nobody_places_quantiles_that_are_public_and_shares_are_shares(epsilon: float, j: int, size: int) -> None:
    assert choose(params(epsilon, size, j, binned=True)).placing == 0
    rule = choose(params(epsilon, size, j))
    assert 0 < rule.placing < 1
    assert 0 <= rule.blocks < 1
    assert all(0 < target < 1 for target in rule.targets)
    assert rule.block_size <= j
    assert bool(rule.blocks) == bool(rule.block_size)


def test_a_block_is_as_large_as_the_budget_bears() -> None:
    assert [block_size(epsilon, 100) for epsilon in (0.1, 3.0, 4.0, 50.0)] == [2, 2, 3, 4]
    assert block_size(50.0, 3) == 3
    assert block_size(0.1, 2) == 2


def test_a_rule_is_made_of_plain_figures() -> None:
    assert {field.name for field in fields(Rule)} >= {"targets", "placing", "blocks", "is_one_bit"}
