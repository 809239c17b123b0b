"""The rule depends on public figures only, and its questions can be asked."""

from __future__ import annotations

from dataclasses import fields

import pytest

from shoal.data.schema import Categorical, Numeric, Schema
from shoal.protocols.anonml.params import AnonMLPlusParams
from shoal.protocols.anonml.plus import QuestionRule, choose_block_size, choose_rule


def params(
    epsilon: float,
    size: int = 1000,
    j: int = 6,
    n_labels: int = 2,
    *,
    binned: bool = False,
    trust: str = "local",
) -> AnonMLPlusParams:
    features = [Numeric(f"x{i}", 0, 1, bins=[0.5] if binned else None) for i in range(j)]
    return AnonMLPlusParams(
        Schema(features, label=Categorical("y", [f"c{i}" for i in range(n_labels)])),
        epsilon,
        size,
        trust=trust,
    )  # type: ignore[arg-type]


def test_rule_does_not_depend_on_ranges_and_names() -> None:
    """It may use epsilon, size, features, classes, trust, and whether bins are public."""
    for epsilon in (0.5, 2.0, 4.0, 8.0):
        other = AnonMLPlusParams(
            Schema(
                [Categorical("a", ["u", "v"]), *(Numeric(f"z{i}", -9, 1e6) for i in range(5))],
                label=Categorical("w", ["no", "yes"]),
            ),
            epsilon,
            1000,
        )
        assert choose_rule(params(epsilon)) == choose_rule(other)


def test_rule_uses_bits_at_small_budgets() -> None:
    rule = choose_rule(params(0.5))
    assert rule.is_one_bit
    assert not rule.has_lowest and rule.grid is None and not rule.blocks
    assert len(rule.targets) == 1


def test_rule_uses_bits_only_for_two_classes_and_few_people() -> None:
    assert not choose_rule(params(0.5, n_labels=3)).is_one_bit
    assert not choose_rule(params(0.5, size=10**7)).is_one_bit
    assert not choose_rule(params(4.0)).is_one_bit


def test_rule_uses_blocks_at_large_budgets_with_many_people() -> None:
    rule = choose_rule(params(8.0, size=100_000))
    assert 0 < rule.blocks < 1
    assert 2 <= rule.block_size <= 6
    assert not choose_rule(params(8.0, size=10)).blocks
    assert not choose_rule(params(8.0, size=100_000, n_labels=3)).blocks
    assert not choose_rule(params(8.0, size=100_000, j=1)).blocks
    assert not choose_rule(params(2.0, size=100_000)).blocks


def test_rule_for_shuffled_trust_has_one_phase() -> None:
    for epsilon in (0.5, 2.0, 8.0):
        rule = choose_rule(params(epsilon, size=100_000, trust="shuffled"))
        assert (rule.placing, rule.blocks, rule.is_one_bit, rule.targets) == (0, 0, False, ())
        assert rule.grid is not None


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 20.0])
@pytest.mark.parametrize("j", [1, 2, 6, 19, 20, 300])
@pytest.mark.parametrize("size", [1, 1000, 10**6])
def test_rule_places_no_public_quantiles_and_has_valid_shares(
    epsilon: float, j: int, size: int
) -> None:
    assert choose_rule(params(epsilon, size, j, binned=True)).placing == 0
    rule = choose_rule(params(epsilon, size, j))
    assert 0 < rule.placing < 1
    assert 0 <= rule.blocks < 1
    assert all(0 < target < 1 for target in rule.targets)
    assert rule.block_size <= j
    assert bool(rule.blocks) == bool(rule.block_size)


def test_block_size_grows_with_budget() -> None:
    assert [choose_block_size(epsilon, 100) for epsilon in (0.1, 3.0, 4.0, 50.0)] == [2, 2, 3, 4]
    assert choose_block_size(50.0, 3) == 3
    assert choose_block_size(0.1, 2) == 2


def test_rule_has_expected_values() -> None:
    assert {field.name for field in fields(QuestionRule)} >= {
        "targets",
        "placing",
        "blocks",
        "is_one_bit",
    }
