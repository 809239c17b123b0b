"""What a release says: rows, the model they were drawn from, the study, and the privacy statement that follows from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

import numpy as np
from pydantic import Field

from shoal.domain import Schema
from shoal.errors import IntegrityError, RemoteProtocolError, SpecError
from shoal.messages.base import Record
from shoal.protocols.pfds import local
from shoal.protocols.pfds.dataset import Dataset
from shoal.protocols.pfds.model import Model
from shoal.protocols.pfds.params import GRID, Ints, Params
from shoal.protocols.pfds.pooling import projected
from shoal.protocols.pfds.sums import SumScript
from shoal.study.label import Statement
from shoal.study.manifest import Manifest
from shoal.study.pfds import params_of
from shoal.study.plan import make_plan


class ReleaseError(IntegrityError):
    """A release is not what a holder could have signed, or is not what was signed."""

    exit_code = 7


@contextmanager
def refusing(code: str, what: str, fix: str) -> Iterator[None]:
    """Raise what the project's own readers say about a stranger's document as a `ReleaseError`."""
    try:
        yield
    except (SpecError, RemoteProtocolError) as error:
        raise ReleaseError(code, what, why=error.what, fix=fix) from None


class Counted(Record):
    """How many rows stand behind a release, by a query that was charged for.

    Parameters
    ----------
    rows, deviation
        The noisy count, and the standard deviation of its noise.
    shares
        The label's: the noisy share of each class; of a number, how far its mean is from the upper and from the lower end of its range.
    """

    rows: float
    deviation: Annotated[float, Field(ge=0)]
    shares: list[Annotated[float, Field(ge=0, le=1)]]


def counted_rows(params: Params, answers: tuple[Ints, ...], n_answering: int) -> Counted:
    """The rows, and the label's shares, that the noisy tables of a study of variant plus add up to.

    Parameters
    ----------
    answers
        As `shoal.protocols.pfds.population.Learned` has them.
    n_answering
        Holders whose noise is in the sums; of no matter with trust local.

    Notes
    -----
    Each table counts every row of its holders once, on the sides of its label. Shares that noise has made negative are projected.

    Privacy
    -------
    Free: it is computed from answers that were charged for.
    """
    if params.trust == "secure-sum":
        mechanism = SumScript(params).mechanism("tables")
        assert mechanism is not None, "without noise there is no release"
        tables, n, variance = answers[:1], len(params.arities), mechanism.variance(n_answering)
    else:
        tables, n = answers, local.n_tables(params)
        variance = 2 * float(local.price(params).parameters["scale"]) ** 2
    units = n * GRID
    sides = np.sum([table.reshape(-1, params.n_sides).sum(axis=0) for table in tables], axis=0) / units
    rows = float(sides.sum())
    deviation = float(np.sqrt(variance * sum(table.size for table in tables))) / units
    return Counted(rows=rows, deviation=deviation, shares=projected(sides / max(rows, 1.0), 1.0).tolist())


@dataclass(frozen=True, eq=False)
class Release:
    """What one holder publishes.

    Parameters
    ----------
    manifest
        The study, of pfds: schema, price and statement follow from it.
    dataset
        The rows. They are made up, and all that is known of the real ones is what was charged for.
    is_simulated
        Whether all of it happened in one process. The statement, the file's name and the document then say so.
    model
        Variant plus: what the rows were drawn from. Variant paper has none.
    counted
        A charged count of the rows behind the release, and of the sides of their label, if there is one.
    notes
        What else the statement does not cover.

    Examples
    --------
    >>> from shoal.study.load import parse
    >>> from shoal.study.templates import study_text
    >>> study = parse(study_text("pfds").replace('"plus"', '"paper"').replace("730]", "730]\\nmissing = false"))
    >>> empty = Dataset({name: np.zeros(0) for name in study.schema().names}, np.zeros(0, int))
    >>> release = Release(Manifest(study), empty, is_simulated=True)
    >>> print(release.statement.scope)
    record, add-remove, against all who read the release
    """

    manifest: Manifest
    dataset: Dataset
    is_simulated: bool
    model: Model | None = None
    counted: Counted | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        study = self.manifest.study
        if study.protocol != "pfds":
            raise _unfit(f"its study is of {study.protocol}", "Release what a study of pfds has learned.")
        if not isinstance(self.model, Model | None):
            raise _unfit("its model is not one that was released", "Give the pooled model; one of rows themselves never leaves.")
        if (self.model is None) != (study.variant == "paper"):
            raise _unfit("variant plus releases a model beside its rows, and variant paper none", "Give the model with variant plus only.")
        if self.counted is not None and len(self.counted.shares) != self.params.n_sides:
            raise _unfit("its charged count is of other classes than those of its study", "Give the count of the same study.")

    @cached_property
    def params(self) -> Params:
        """The public figures of the study."""
        return params_of(self.manifest.study)

    @property
    def schema(self) -> Schema:
        """Features and label of the rows."""
        return self.params.schema

    @cached_property
    def statement(self) -> Statement:
        """What protects those whose rows stand behind the release, computed here from the study alone."""
        manifest = self.manifest
        statement = make_plan(manifest.study, manifest.digest).statement(digest="" if self.is_simulated else manifest.short)
        return replace(statement, simulated=self.is_simulated, not_covered=(*self.notes, *statement.not_covered))


def _unfit(why: str, fix: str) -> SpecError:
    return SpecError("REL-002", f"This is not a release: {why}.", fix=fix)
