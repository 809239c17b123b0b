"""The content of a release; data files.

`shoal.releases.document` and `artifact` write and read it, and the PFDS estimators make it. The
privacy statement is computed from the study alone, never copied from a file.
"""

from __future__ import annotations

import csv
import io
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from shoal.data import tables
from shoal.data.schema import Schema
from shoal.errors import IntegrityError, RemoteProtocolError, SpecError, require_extra
from shoal.messages.base import Record
from shoal.protocols.pfds import tables as local
from shoal.protocols.pfds.dataset import Dataset
from shoal.protocols.pfds.model import PooledModel
from shoal.protocols.pfds.params import GRID, Ints, PFDSParams
from shoal.protocols.pfds.script import SecureSumScript
from shoal.protocols.pfds.tables import project_to_simplex
from shoal.study.label import Statement
from shoal.study.manifest import Manifest
from shoal.study.pfds import build_params
from shoal.study.plan import make_plan
from shoal.study.registry import get_protocol


class ReleaseError(IntegrityError):
    """A release could not have been signed by a holder, or was changed after signing."""

    exit_code = 7


@contextmanager
def raise_as_release_error(code: str, what: str, fix: str) -> Iterator[None]:
    """Raise errors of readers about an untrusted document as `ReleaseError`."""
    try:
        yield
    except (SpecError, RemoteProtocolError) as error:
        raise ReleaseError(code, what, why=error.what, fix=fix) from None


class NoisyRowCount(Record):
    """The number of rows behind a release, from a query that was charged for.

    Parameters
    ----------
    rows, deviation
        The noisy count, and the standard deviation of its noise.
    shares
        The noisy share of each class of the label. For a number: the distances of its mean from the
        upper and from the lower end of the range.
    """

    rows: float
    deviation: Annotated[float, Field(ge=0)]
    shares: list[Annotated[float, Field(ge=0, le=1)]]


def compute_noisy_row_count(
    params: PFDSParams, answers: tuple[Ints, ...], n_answering: int
) -> NoisyRowCount:
    """Return the row count and the label's shares from noisy tables of variant plus.

    Parameters
    ----------
    answers
        Those of `shoal.protocols.pfds.population.PFDSSimulationResult`.
    n_answering
        Holders with noise in the sums; not used with trust local.

    Notes
    -----
    Each table counts every row of its holders once, on the sides of its label. Shares that are
    negative because of noise are projected to the simplex.

    Privacy
    -------
    Free: it is computed from answers that were charged for.
    """
    if params.trust == "secure-sum":
        mechanism = SecureSumScript(params).find_mechanism("tables")
        assert mechanism is not None, "without noise there is no release"
        tables, n, variance = answers[:1], len(params.arities), mechanism.variance(n_answering)
    else:
        tables, n = answers, local.choose_n_tables(params)
        variance = 2 * float(local.price_tables(params).parameters["scale"]) ** 2
    units = n * GRID
    sides = (
        np.sum([table.reshape(-1, params.n_sides).sum(axis=0) for table in tables], axis=0) / units
    )
    rows = float(sides.sum())
    deviation = float(np.sqrt(variance * sum(table.size for table in tables))) / units
    return NoisyRowCount(
        rows=rows,
        deviation=deviation,
        shares=project_to_simplex(sides / max(rows, 1.0), 1.0).tolist(),
    )


@dataclass(frozen=True, eq=False)
class PFDSRelease:
    """The publication of one holder.

    Parameters
    ----------
    manifest
        A PFDS study, which determines schema, price and statement.
    dataset
        Synthetic rows. They contain nothing about the real rows that was not charged for.
    is_simulated
        True if everything ran in one process. Statement, file name and document then say so.
    model
        Variant plus: the model that the rows were sampled from. Variant paper has none.
    noisy_count
        A charged count of the rows behind the release and of the sides of their label, if there is
        one.
    notes
        Further exclusions from the statement.

    Examples
    --------
    >>> from shoal.study.loader import parse_study_text
    >>> from shoal.study.pfds import PFDSProtocol
    >>> from shoal.study.starters import read_starter
    >>> study = parse_study_text(
    ...     read_starter(PFDSProtocol.name)
    ...     .replace('"plus"', '"paper"')
    ...     .replace("730]", "730]\\nmissing = false")
    ... )
    >>> empty = Dataset({name: np.zeros(0) for name in study.schema().names}, np.zeros(0, int))
    >>> release = PFDSRelease(Manifest(study), empty, is_simulated=True)
    >>> print(release.statement.scope)
    record, add-remove, against all who read the release
    """

    manifest: Manifest
    dataset: Dataset
    is_simulated: bool
    model: PooledModel | None = None
    noisy_count: NoisyRowCount | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        study = self.manifest.study
        if not get_protocol(study).publishes_rows:
            raise _make_unfit_error(
                f"a study with protocol {study.protocol} releases no rows",
                "Release the result of a PFDS study.",
            )
        if not isinstance(self.model, PooledModel | None):
            raise _make_unfit_error(
                "its model is not a pooled model",
                "Give the pooled model. A model trained on real rows must not be released.",
            )
        if (self.model is None) != (study.variant == "paper"):
            raise _make_unfit_error(
                "variant plus releases a model with its rows, variant paper does not",
                "Give a model with variant plus only.",
            )
        if self.noisy_count is not None and len(self.noisy_count.shares) != self.params.n_sides:
            raise _make_unfit_error(
                "the classes of its charged count are not those of its study",
                "Give the count of the same study.",
            )

    @cached_property
    def params(self) -> PFDSParams:
        """The public parameters of the study."""
        return build_params(self.manifest.study)

    @property
    def schema(self) -> Schema:
        """Features and label of the rows."""
        return self.params.schema

    @cached_property
    def statement(self) -> Statement:
        """The guarantee for people with rows behind the release.

        It is computed here from the study alone.
        """
        manifest = self.manifest
        statement = make_plan(manifest.study, manifest.digest).make_statement(
            digest="" if self.is_simulated else manifest.short_digest
        )
        return replace(
            statement,
            simulated=self.is_simulated,
            not_covered=(*self.notes, *statement.not_covered),
        )


def _make_unfit_error(why: str, fix: str) -> SpecError:
    return SpecError("REL-002", f"This is not a release: {why}.", fix=fix)


RowsFormat = Literal["csv", "parquet"]

_MAX_WHOLE = 1e15
"""Larger whole numbers are written with an exponent."""


def encode_rows(schema: Schema, dataset: Dataset, file_format: RowsFormat) -> bytes:
    """Return the rows as the bytes of a file.

    Texts are written as declared, numbers so that they parse to the same value, and missing values
    as empty cells.
    """
    columns = dataset.decode(schema)
    return _encode_csv(columns) if file_format == "csv" else _encode_parquet(columns)


def decode_rows(schema: Schema, data: bytes, file_format: RowsFormat) -> Dataset:
    """Return the rows in the bytes of a file.

    Raises
    ------
    SpecError
        The columns are not exactly those of the schema, or a cell does not fit.
    """
    # Table readers take paths. They must read the bytes with the checked digest, so these bytes are
    # written to a new file.
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / f"data.{file_format}"
        path.write_bytes(data)
        columns = tables.read_table_file(path)
    assert schema.label is not None
    if tuple(columns) != (*schema.names, schema.label.name):
        raise SpecError("DATA-001", "The columns are not those of the study, in their order.")
    return Dataset(schema.encode(columns), schema.encode_label(columns))


def _encode_csv(columns: dict[str, npt.NDArray[Any]]) -> bytes:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(
        zip(*(map(_format_cell, column.tolist()) for column in columns.values()), strict=True)
    )
    return file.getvalue().encode()


def _format_cell(value: str | float | None) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if math.isnan(value):
        return ""
    return str(int(value)) if value.is_integer() and abs(value) < _MAX_WHOLE else repr(value)


def _encode_parquet(columns: dict[str, npt.NDArray[Any]]) -> bytes:
    require_extra("arrow", "pyarrow", purpose="A Parquet file")
    import pyarrow
    from pyarrow import parquet

    arrays = {
        name: pyarrow.array(
            column,
            pyarrow.float64() if column.dtype == np.float64 else pyarrow.string(),
            from_pandas=True,
        )
        for name, column in columns.items()
    }
    file = io.BytesIO()
    parquet.write_table(pyarrow.table(arrays), file)
    return file.getvalue()
