"""k-ary randomised response: from one word to a report, and its encoding."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shoal.errors import MechanismError
from shoal.mechanisms.frequency_oracle import WORD
from shoal.mechanisms.randomized_response import RandomizedResponse


class Script:
    """Entropy that returns given words."""

    def __init__(self, *words: int) -> None:
        self._words = list(words)

    def word(self) -> int:
        return self._words.pop(0)


@pytest.mark.parametrize(("epsilon", "m"), [(0.1, 2), (1.0, 4), (1.0, 16), (3.0, 1000)])
def test_keep_probability_is_closed_form(epsilon, m):
    mechanism = RandomizedResponse(epsilon, m)
    assert math.isclose(
        float(mechanism.p), math.exp(epsilon) / (math.exp(epsilon) + m - 1), rel_tol=1e-12
    )
    assert mechanism.p + (m - 1) * mechanism.q == 1


def test_keep_probability_is_largest_with_64_bits():
    """One unit less for each other cell would exceed epsilon."""
    mechanism = RandomizedResponse(1.0, 4)
    other = int(mechanism.q * WORD)
    assert (
        (WORD - 3 * other) / other <= math.e < (WORD - 3 * (other - 1)) / (other - 1) * (1 + 1e-15)
    )


def test_one_word_decides_and_each_word_belongs_to_one_cell():
    mechanism = RandomizedResponse(1.0, 4)
    keep, other = int(mechanism.p * WORD), int(mechanism.q * WORD)
    starts = [0, keep, keep + other, keep + 2 * other]
    ends = [*(start - 1 for start in starts[1:]), WORD - 1]
    assert [mechanism.report(1, Script(word)) for word in starts] == [1, 0, 2, 3]
    assert [mechanism.report(1, Script(word)) for word in ends] == [1, 0, 2, 3]


@pytest.mark.parametrize(("m", "width"), [(2, 1), (256, 1), (257, 2), (1 << 16, 2)])
def test_encoding_is_as_short_as_domain_allows(m, width):
    mechanism = RandomizedResponse(1.0, m)
    assert mechanism.encode(m - 1) == (m - 1).to_bytes(width, "little")


@pytest.mark.parametrize("wire", [b"", b"\x03\x00", b"\x05", b"\xff", "\x03", None])
def test_decode_rejects_other_bytes(wire):
    with pytest.raises(
        MechanismError, match="MECH-003  This is not a report of random-response over 5 cells"
    ):
        RandomizedResponse(1.0, 5).decode(wire)


@pytest.mark.parametrize("report", [-1, 5, True, b"\x03", 2.0])
def test_encode_and_stack_reject_other_reports(report):
    with pytest.raises(MechanismError, match="MECH-003"):
        RandomizedResponse(1.0, 5).encode(report)
    with pytest.raises(MechanismError, match="MECH-003"):
        RandomizedResponse(1.0, 5).stack([1, report])


@pytest.mark.parametrize(
    "reports", [np.array([[1]]), np.array([1.0]), np.array([-1]), np.array([0, 5])]
)
def test_tally_rejects_other_arrays(reports):
    with pytest.raises(MechanismError, match="MECH-003"):
        RandomizedResponse(1.0, 5).tally(reports)


def test_tally_counts_each_cell():
    assert RandomizedResponse(1.0, 4).tally(np.array([3, 1, 1])).tolist() == [0, 2, 0, 1]
