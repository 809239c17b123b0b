"""Packed bits: order of cells, exact counts at every size, and encoding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.entropy import SeededEntropy
from shoal.errors import MechanismError
from shoal.mechanisms.packed_bits import draw_bytes, draw_packed_rows, set_cells, tally_packed
from shoal.mechanisms.subset_selection import SubsetSelection
from shoal.mechanisms.unary_encoding import PQPerturbation


@settings(deadline=None, max_examples=60)
@given(n=st.integers(0, 2000), m=st.integers(2, 70), seed=st.integers(0, 1000))
def test_tally_is_column_sum(n, m, seed):
    bits = np.unpackbits(
        np.frombuffer(SeededEntropy(seed).bytes(-(-n * m // 8)), np.uint8), count=n * m
    ).reshape(n, m)
    rows = np.packbits(bits, axis=1, bitorder="little")
    assert tally_packed(rows, m).tolist() == bits.sum(axis=0).tolist()


@pytest.mark.parametrize("n", [63, 64, 65, 191, 192, 193, 600_000])
def test_tally_of_all_ones_does_not_overflow(n):
    assert tally_packed(np.full((n, 2), 255, np.uint8), 16).tolist() == [n] * 16


def test_tally_does_not_change_reports(entropy):
    rows = entropy.words(1000 * 3, np.uint8).reshape(1000, 3).copy()
    before = rows.copy()
    tally_packed(rows, 24)
    assert (rows == before).all()


def test_cell_i_is_bit_i_of_little_endian_integer():
    rows = draw_packed_rows(2, 10, lambda n: np.arange(n) % 10 == 9)
    assert [int.from_bytes(row.tobytes(), "little") for row in rows] == [1 << 9, 1 << 9]
    assert tally_packed(rows, 10).tolist() == [0] * 9 + [2]


def test_set_cells_changes_one_cell_of_each_row():
    rows = np.array([[0b1010, 0], [0b1010, 0], [0, 0]], np.uint8)
    set_cells(rows, np.array([0, 3, 9]), np.array([True, False, True]))
    assert rows.tolist() == [[0b1011, 0], [0b0010, 0], [0, 2]]


@pytest.mark.parametrize("n", [1, 7, 8, 9, 32, 33, 1000])
def test_draw_bytes_returns_n_bytes(n, entropy):
    assert len(draw_bytes(n, entropy)) == n


@pytest.mark.parametrize(
    "reports", [np.zeros((3, 1), np.uint8), np.zeros((3, 2), np.int64), np.zeros(2, np.uint8)]
)
def test_tally_rejects_other_arrays(reports):
    with pytest.raises(MechanismError, match="MECH-003"):
        PQPerturbation(1.0, 10).tally(reports)


@pytest.mark.parametrize(
    ("wire", "why"),
    [
        (b"\x00", "It has 1 bytes instead of 2"),
        (b"\x00\x00\x00", "It has 3 bytes instead of 2"),
        (b"\x00\x04", "beyond the last cell"),
        (b"\x00\x80", "beyond the last cell"),
        (7, "It is not bytes but int"),
        (bytearray(2), "It is not bytes but bytearray"),
    ],
)
def test_decode_rejects_other_bytes(wire, why):
    mechanism = PQPerturbation(1.0, 10)
    for check in (mechanism.decode, mechanism.encode, lambda report: mechanism.stack([report])):
        with pytest.raises(
            MechanismError, match="MECH-003  This is not a report of pq over 10 cells"
        ) as caught:
            check(wire)
        assert why in str(caught.value)


def test_decode_rejects_set_of_wrong_size():
    mechanism = SubsetSelection(1.0, 16)
    assert mechanism.ones == 4
    assert mechanism.decode(b"\x0f\x00") == b"\x0f\x00"
    for wire in (b"\x07\x00", b"\x1f\x00", b"\x00\x00"):
        with pytest.raises(MechanismError, match="bits set instead of 4"):
            mechanism.decode(wire)
