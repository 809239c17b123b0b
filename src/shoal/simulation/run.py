"""One run of a study on a table, for any protocol: its rows, its task and its outcome.

Commands split a table with `split_rows`; `shoal.simulation.registry.run` takes a `RunTask` and
returns a `RunOutcome`. All randomness follows from the task's seed, repeat and parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.data.cells import as_column, describe_rows, to_texts
from shoal.data.schema import Columns, Schema, missing_column_error
from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import SpecError, UsageError
from shoal.protocols.anonml.params import AnonMLPaperParams, AnonMLParams, AnonMLPlusParams
from shoal.protocols.ddml.params import DDMLParams
from shoal.protocols.ddml.population import Traffic
from shoal.protocols.pfds.params import PFDSParams
from shoal.protocols.sdq.params import SDQParams
from shoal.simulation.metrics import (
    ClassificationScores,
    EncodedColumns,
    Ints,
    PersonalModelScores,
    RegressionScores,
)
from shoal.text import escape_text, format_count

ProtocolParams = AnonMLParams | DDMLParams | SDQParams | PFDSParams

TEST_PART = 4
"""One row in this number is set aside for testing."""
_FINE = 1 << 32


@dataclass(frozen=True, eq=False)
class Split:
    """Encoded rows: training rows in the table's order, and test rows.

    Parameters
    ----------
    holders, n_holders
        The device, database or organisation of each training row, and their number in the whole
        table; None if the table does not name them.
    people
        The person of each training row; None if the table does not name people.
    """

    train_columns: EncodedColumns = field(repr=False)
    train_labels: npt.NDArray[Any] = field(repr=False)
    test_columns: EncodedColumns = field(repr=False)
    test_labels: npt.NDArray[Any] = field(repr=False)
    holders: Ints | None = field(default=None, repr=False)
    n_holders: int = 0
    people: Ints | None = field(default=None, repr=False)


def make_seed_text(params: ProtocolParams) -> str:
    """Return parameters as text for a seed: their values, under names that never change."""
    name = {AnonMLPlusParams: "Plus", AnonMLPaperParams: "Paper"}.get(type(params), "Params")
    return name + repr(params).removeprefix(type(params).__name__)


@dataclass(frozen=True)
class RunTask:
    """The definition of one run.

    Parameters
    ----------
    seed, repeat
        Source of all randomness, together with the parameters.
    dropout
        Share of the people, devices, databases or organisations that do not answer.
    traffic
        Arrival of the updates of DDML's devices.
    """

    params: ProtocolParams
    seed: int
    repeat: int = 0
    dropout: float = 0.0
    traffic: Traffic = field(default_factory=Traffic)

    @property
    def entropy(self) -> SeededEntropy:
        """The random source of the run."""
        return SeededEntropy(self.seed).spawn("run", make_seed_text(self.params), self.repeat)


@dataclass(frozen=True)
class RunOutcome:
    """The outcome of one run.

    Parameters
    ----------
    scores
        Scores on the test rows.
    n_participants
        Participants that answered: people, devices, databases or holders.
    answers
        Answers of each phase. For DDML the merged updates; for SDQ and secure sums of PFDS the sums
        of each round; for PFDS without sums the values or synthetic rows of each holder.
    model
        The model as plain data.
    n_rows
        SDQ and PFDS: rows that were counted.
    personal_scores
        PFDS: scores of personal models.
    details
        Diagnostics of the first repeat as plain data, without empty entries.
    """

    scores: ClassificationScores | RegressionScores
    n_participants: int
    answers: tuple[int, ...]
    model: dict[str, Any] = field(repr=False)
    n_rows: int | None = None
    personal_scores: PersonalModelScores | None = None
    details: dict[str, Any] = field(default_factory=dict, repr=False)

    def with_details(self, details: Mapping[str, Any]) -> RunOutcome:
        """Return the outcome with its diagnostics; empty ones are left out."""
        return replace(self, details={name: value for name, value in details.items() if value})


def split_rows(
    schema: Schema,
    columns: Columns,
    seed: int,
    holder: str | None = None,
    person: str | None = None,
) -> Split:
    """Encode a table, and set a random quarter of its rows aside for testing.

    Parameters
    ----------
    holder
        Name of a column with the device, database or organisation of a row.
    person
        Name of a column with the person of a row. A quarter of the people, or of their devices, is
        then set aside with all their rows.

    Raises
    ------
    SpecError
        The table does not fit the schema, or is too small to learn from a part of it and to test on
        the other (``SIM-003``).
    """
    encoded, labels = schema.encode(columns), schema.encode_label(columns)
    n = len(labels)
    if len(np.unique(labels)) < 2:
        what = (
            "The table has no rows."
            if n == 0
            else f"All {format_count(n, 'row')} of the table have the same label."
        )
        raise SpecError(
            "SIM-003",
            what,
            why="A model needs two labels to learn a difference.",
            fix="Give rows with two labels or more.",
        )
    people = np.arange(n) if person is None else number_names(columns, person)
    holders = None if holder is None else number_names(columns, holder)
    n_people = int(people.max()) + 1
    order = np.argsort(SeededEntropy(seed).spawn("split").words(n_people, np.uint64), kind="stable")
    is_test = np.isin(people, order[: n_people // TEST_PART])
    test, train = np.flatnonzero(is_test), np.flatnonzero(~is_test)
    if min(len(np.unique(labels[part])) for part in (test, train)) < 2:
        aside = f"{len(test):,} {'is' if len(test) == 1 else 'are'} set aside for testing"
        raise SpecError(
            "SIM-003",
            f"Of {format_count(n, 'row')}, {aside}, and one of the two parts has fewer than two "
            "different labels.",
            why="A model is tested on rows that it has not learnt from, and both parts need rows "
            "with two labels.",
            fix="Give more "
            f"rows{'' if person is None else f' of different {escape_text(person)}'}, or another "
            "--seed.",
        )
    parts = [{name: column[part] for name, column in encoded.items()} for part in (train, test)]
    return Split(
        parts[0],
        labels[train],
        parts[1],
        labels[test],
        None if holders is None else holders[train],
        0 if holders is None else int(holders.max()) + 1,
        None if person is None else people[train],
    )


def number_names(columns: Columns, name: str) -> Ints:
    """Return a number for the name in each row, equal for equal names."""
    if name not in columns:
        raise missing_column_error(name, len(list(columns)))
    texts = to_texts(name, as_column(name, columns[name]))
    is_missing = np.array([text is None for text in texts])
    if is_missing.any():
        raise SpecError(
            "DATA-005",
            f"{name}: {describe_rows(is_missing)} missing.",
            why="The column names the owner of a row.",
            fix="Fill in the cells, or remove the rows.",
        )
    return np.unique(np.array(texts, str), return_inverse=True)[1].astype(np.int64)


def draw_participants(n: int, task: RunTask) -> npt.NDArray[np.bool_]:
    """Return which of n people or devices do not drop out.

    Raises
    ------
    UsageError
        ``SIM-003``: no participant is left.
    """
    entropy: Entropy = task.entropy.spawn("dropout")
    stays = (
        entropy.below_many(_FINE, n) >= task.dropout * _FINE if task.dropout else np.ones(n, bool)
    )
    if not stays.any():
        raise UsageError(
            "SIM-003",
            f"With a dropout of {task.dropout} no participant is left to answer.",
            fix="Give more rows, or a smaller --dropout.",
        )
    return stays
