"""Bit-vector reports, packed eight to a byte.

Drawing, counting and encoding of reports with one bit per cell, for `unary_encoding` and
`subset_selection`, which differ in how the bits are chosen.

Cell i is bit i mod 8, from the lowest, of byte i div 8. So a report is an integer in little-endian
bytes, with cell i as its bit i. Bits beyond the last cell are zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.mechanisms.frequency_oracle import FrequencyOracle, Report, Reports

PackedRows = npt.NDArray[np.uint8]

_DRAW_CELLS = 1 << 16
_FOLD_BYTES = 1 << 20
_FOLD_ROWS = 64
_MAX_WORD_BYTES = 32


def draw_packed_rows(
    n: int, cardinality: int, draw: Callable[[int], npt.NDArray[np.bool_]]
) -> PackedRows:
    """Draw rows of independent bits, packed, in pieces that fit the processor's cache."""
    rows = np.empty((n, (cardinality + 7) // 8), np.uint8)
    step = max(1, _DRAW_CELLS // cardinality)
    for start in range(0, n, step):
        part = rows[start : start + step]
        bits = draw(len(part) * cardinality).reshape(len(part), cardinality)
        part[:] = np.packbits(bits, axis=1, bitorder="little")
    return rows


def set_cells(rows: PackedRows, cells: npt.NDArray[np.int64], bits: npt.NDArray[np.bool_]) -> None:
    """Overwrite one cell of each row."""
    flat = rows.reshape(-1)
    at = np.arange(len(rows)) * rows.shape[1] + (cells >> 3)
    shift = (cells & 7).astype(np.uint8)
    flat[at] = flat[at] & ~(np.uint8(1) << shift) | bits.view(np.uint8) << shift


def draw_bytes(n: int, entropy: Entropy) -> bytes:
    """Draw random bytes for one report.

    Few bytes are taken from buffered words, which is faster than a call to the cipher.
    """
    if n > _MAX_WORD_BYTES:
        return entropy.bytes(n)
    drawn = entropy.word().to_bytes(8, "little")
    while len(drawn) < n:
        drawn += entropy.word().to_bytes(8, "little")
    return drawn[:n]


def tally_packed(rows: PackedRows, cardinality: int) -> npt.NDArray[np.int64]:
    """Count the rows that have each cell set, ``(m,)``.

    Notes
    -----
    Carry-save addition: three bits of one column are a sum bit of the same weight and a carry bit
    of twice the weight, for all columns in one operation. So three rows become two, repeatedly,
    until unpacking the few rows left of each weight costs little.
    """
    counts = np.zeros(cardinality, np.int64)
    step = max(_FOLD_ROWS, _FOLD_BYTES // rows.shape[1])
    for start in range(0, len(rows), step):
        addends, weight = rows[start : start + step], 1
        while len(addends):
            few, carries = _add_carry_save(addends)
            bits = np.unpackbits(few, axis=1, count=cardinality, bitorder="little")
            counts += np.int64(weight) * np.add.reduce(bits, axis=0, dtype=np.uint8)
            addends, weight = carries, 2 * weight
    return counts


def _add_carry_save(rows: PackedRows) -> tuple[PackedRows, PackedRows]:
    """Return a few rows, and rows of twice the weight, with the same sum as these rows."""
    carries = np.empty((len(rows) // 2, rows.shape[1]), np.uint8)
    n_carries = 0
    while len(rows) >= _FOLD_ROWS:
        third = len(rows) // 3
        a, b, c = rows[:third], rows[third : 2 * third], rows[2 * third : 3 * third]
        half = a ^ b
        carry = np.bitwise_and(a, b, out=carries[n_carries : n_carries + third])
        carry |= half & c
        n_carries += third
        rows = np.concatenate([np.bitwise_xor(half, c, out=half), rows[3 * third :]])
    return rows, carries[:n_carries]


class PackedFrequencyOracle(FrequencyOracle):
    """A frequency oracle with one packed bit per cell in a report."""

    ones: int | None = None
    """Number of bits set in each report; None if it varies."""

    @cached_property
    def width(self) -> int:
        """Bytes of a report."""
        return (self.cardinality + 7) // 8

    def tally(self, reports: Reports) -> npt.NDArray[np.int64]:
        if reports.dtype != np.uint8 or reports.shape[1:] != (self.width,):
            raise self._malformed_error(
                f"Reports are rows of {self.width} bytes, not {reports.dtype} of shape "
                f"{reports.shape}."
            )
        return tally_packed(reports.astype(np.uint8, copy=False), self.cardinality)

    def encode(self, report: Report) -> bytes:
        return self._check_report(report)

    def decode(self, wire: bytes) -> bytes:
        return self._check_report(wire)

    def stack(self, reports: Iterable[Report]) -> PackedRows:
        joined = b"".join(self._check_report(report) for report in reports)
        return np.frombuffer(joined, np.uint8).reshape(-1, self.width)

    def _check_report(self, report: Report) -> bytes:
        if not isinstance(report, bytes):
            raise self._malformed_error(f"It is not bytes but {type(report).__name__}.")
        if len(report) != self.width:
            raise self._malformed_error(f"It has {len(report)} bytes instead of {self.width}.")
        bits = int.from_bytes(report, "little")
        if bits >> self.cardinality:
            raise self._malformed_error("Bits are set beyond the last cell.")
        if self.ones is not None and bits.bit_count() != self.ones:
            raise self._malformed_error(
                f"It has {bits.bit_count()} bits set instead of {self.ones}."
            )
        return report

    def _allocate_reports(self, n: int) -> PackedRows:
        return np.empty((n, self.width), np.uint8)
