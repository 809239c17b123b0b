"""A model of any protocol, with what its file says about where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.domain import Categorical, Feature, Schema
from shoal.errors import UsageError
from shoal.protocols.anonml import model as anonml
from shoal.protocols.anonml.model import AdditiveModel, VoteModel
from shoal.protocols.ddml import model as ddml
from shoal.protocols.ddml.model import GLM
from shoal.protocols.pfds import model as pfds
from shoal.protocols.pfds.model import Model as PooledModel
from shoal.protocols.sdq import model as sdq
from shoal.protocols.sdq.model import Tree

Learned = AdditiveModel | VoteModel | Tree | GLM | PooledModel
Floats = npt.NDArray[np.float64]

FORMAT = "shoal model"
VERSION = 1


@dataclass(frozen=True)
class Kind:
    """A form that models have.

    Parameters
    ----------
    words
        What it is.
    protocols
        Whose models have it.
    read
        Reads its plain data; `SpecError` for anything else.
    """

    words: str
    protocols: tuple[str, ...]
    read: Callable[[object], Any]


KINDS: Mapping[str, Kind] = {
    "additive": Kind("scores of cells that add up to log-odds (as naive Bayes)", ("anonml", "sdq"), anonml.from_plain),
    "vote": Kind("a weighted vote of small classifiers", ("anonml",), anonml.from_plain),
    "tree": Kind("a decision tree", ("sdq",), sdq.from_plain),
    "linear": Kind("a generalised linear model", ("ddml",), ddml.from_plain),
    "pooled": Kind("weights of cells that add up, from pooled tables", ("pfds",), pfds.from_plain),
}
"""Every kind that a file may hold, by its name there."""


@dataclass(frozen=True, eq=False)
class Model:
    """What was learned, and what its file says about it.

    Parameters
    ----------
    learned
        The model of its protocol.
    protocol, variant, title, digest
        Of the study that it comes from, None where the file does not say; the digest is that of the manifest, in hexadecimal digits.
    is_simulated
        Whether it comes of a simulation, by which nothing was protected; None where the file does not say.
    statement
        The study's privacy statement as plain data, if the file has one. It is the file's word: nothing in it proves that the study ran.

    Examples
    --------
    >>> schema = {"features": [{"name": "age", "missing": False, "range": [17, 90], "bins": [40]}]}
    >>> label = {"name": "ill", "missing": False, "values": ["no", "yes"], "groups": None}
    >>> from shoal.models import read_model
    >>> plain = {"kind": "additive", **schema, "label": label, "label_shares": [0.5, 0.5], "scores": [[[0.2, -0.3], [-0.2, 0.3]]]}
    >>> read_model(plain).predict({"age": [20, 60, 300]}).tolist()
    ['no', 'yes', 'yes']
    """

    learned: Learned
    protocol: str | None = None
    variant: str | None = None
    title: str | None = None
    digest: str | None = None
    is_simulated: bool | None = None
    statement: Mapping[str, Any] | None = None

    @property
    def kind(self) -> str:
        """One of `KINDS`."""
        match self.learned:
            case Tree():
                return "tree"
            case VoteModel():
                return "vote"
            case GLM():
                return "linear"
            case PooledModel():
                return "pooled"
        return "additive"

    @property
    def schema(self) -> Schema:
        """What it predicts from, and what it predicts."""
        return self.learned.schema

    @property
    def label(self) -> Feature:
        """What it predicts."""
        assert self.schema.label is not None, "every reader of models asks for a label"
        return self.schema.label

    @property
    def classes(self) -> tuple[str, ...]:
        """The label's values, in the order of the columns of `probabilities`; none where a number is predicted."""
        return tuple(self.label.values) if isinstance(self.label, Categorical) else ()

    def predict(self, columns: Mapping[str, Any]) -> npt.NDArray[Any]:
        """The predicted class of each row, as text, or the predicted number.

        Parameters
        ----------
        columns
            The cells of each feature by its name: a mapping, or a dataframe. Numbers outside their range are clipped, and unknown
            categories count as unknown; a value may be missing only where the schema allows it.

        Raises
        ------
        SpecError
            A column is not there, or a cell cannot be read.
        """
        encoded = self.schema.encode(columns, outside="clip")
        if not isinstance(self.learned, GLM | PooledModel) or self.classes:
            return np.array(self.classes, object)[self.learned.decide(encoded)]
        return self.learned.predict(encoded)

    def probabilities(self, columns: Mapping[str, Any]) -> Floats:
        """The chance of each class, ``(n, L)``, in the order of `classes`; rows as for `predict`.

        Raises
        ------
        UsageError
            The model predicts a number.
        """
        if not self.classes:
            raise UsageError("USAGE-001", "This model predicts a number, which has no chances of classes.", fix="Use predict.")
        return self.learned.probabilities(self.schema.encode(columns, outside="clip"))

    def to_plain(self) -> dict[str, Any]:
        """The bare model as plain data, as its protocol writes it; `read_model` reads it."""
        return self.learned.to_plain()

    def to_document(self) -> dict[str, Any]:
        """The model with all that is known of it, in the form of ``docs/reference/model.md``; `read_model` reads it."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "simulated": self.is_simulated,
            "protocol": self.protocol,
            "variant": self.variant,
            "title": self.title,
            "study": self.digest,
            "statement": None if self.statement is None else dict(self.statement),
            "model": self.to_plain(),
        }
