"""One run of a study on a table, whatever its protocol: which rows take part, which are kept for testing, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.cells import as_column, to_texts, where
from shoal.domain import Columns, Schema, missing_column
from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import SpecError, UsageError
from shoal.names import counted, shown
from shoal.protocols.anonml.params import Params as AnonMLParams
from shoal.protocols.ddml.params import Params as DDMLParams
from shoal.protocols.ddml.population import Traffic
from shoal.protocols.pfds.params import Params as PFDSParams
from shoal.protocols.sdq.params import Params as SDQParams
from shoal.sim.scores import AtHome, Encoded, Errors, Ints, Scores

Params = AnonMLParams | DDMLParams | SDQParams | PFDSParams

UNSEEN_PART = 4
"""One row in so many is set aside for testing."""
_FINE = 1 << 32


@dataclass(frozen=True, eq=False)
class Split:
    """Encoded rows: those of the people who may be asked, in the table's order, and those on which the model is tried.

    Parameters
    ----------
    asked, labels
        The rows to learn from.
    unseen, unseen_labels
        The rows to test on.
    holders, n_holders
        Who holds each of the rows to learn from (a device, a database, an organisation), and how many there are in the whole table; None
        where nobody says.
    people
        The person of each of the rows to learn from; None where every row is by itself.
    """

    asked: Encoded = field(repr=False)
    labels: npt.NDArray[Any] = field(repr=False)
    unseen: Encoded = field(repr=False)
    unseen_labels: npt.NDArray[Any] = field(repr=False)
    holders: Ints | None = field(default=None, repr=False)
    n_holders: int = 0
    people: Ints | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Task:
    """One run.

    Parameters
    ----------
    params
        What the parties agree on.
    seed, repeat
        All randomness follows from these two and from the parameters.
    dropout
        Share of the people, devices, databases or organisations that do not answer.
    traffic
        How the updates of DDML's devices arrive.
    """

    params: Params
    seed: int
    repeat: int = 0
    dropout: float = 0.0
    traffic: Traffic = field(default_factory=Traffic)

    @property
    def entropy(self) -> SeededEntropy:
        """What the run draws from."""
        return SeededEntropy(self.seed).spawn("run", repr(self.params), self.repeat)


@dataclass(frozen=True)
class Outcome:
    """What came of one run.

    Parameters
    ----------
    scores
        On the rows set aside.
    people
        How many answered: people of AnonML, devices of DDML, databases of SDQ, holders of PFDS.
    answers
        Answers by phase; of DDML the updates that were merged; of SDQ and of PFDS's sums what was learned in each round; of PFDS without
        sums what each holder has shared, figures of its tables or made-up rows.
    model
        The model as plain data.
    n_rows
        Of SDQ and PFDS: rows that were counted.
    at_home
        Of PFDS: what holders have at home.
    details
        Of the first repeat: what the run shows besides its scores, as plain data. Nothing that is empty.
    """

    scores: Scores | Errors
    people: int
    answers: tuple[int, ...]
    model: dict[str, Any] = field(repr=False)
    n_rows: int | None = None
    at_home: AtHome | None = None
    details: dict[str, Any] = field(default_factory=dict, repr=False)

    def with_details(self, details: Mapping[str, Any]) -> Outcome:
        """The same, with what it shows; what the protocol has nothing to say about is left out."""
        return replace(self, details={name: told for name, told in details.items() if told})


def split_rows(schema: Schema, columns: Columns, seed: int, holder: str | None = None, person: str | None = None) -> Split:
    """Encode a table and set a quarter of its rows aside, drawn by the seed.

    Parameters
    ----------
    schema, columns
        The table and what it should hold.
    seed
        Decides which rows are set aside.
    holder
        Name of a column that tells which device, database or organisation holds a row.
    person
        Name of a column that tells whose a row is: then a quarter of the people, or of their devices, is set aside, with all their rows.

    Raises
    ------
    SpecError
        The table does not fit the schema, or is too small to learn from a part of it and to test on the other (``SIM-003``).
    """
    encoded, labels = schema.encode(columns), schema.encode_label(columns)
    n = len(labels)
    if len(np.unique(labels)) < 2:
        what = "The table has no rows." if n == 0 else f"All {counted(n, 'row')} of the table have the same label."
        raise SpecError("SIM-003", what, why="There is nothing to tell apart.", fix="Give rows of two labels or more.")
    whose = np.arange(n) if person is None else numbers_of_names(columns, person)
    holders = None if holder is None else numbers_of_names(columns, holder)
    n_people = int(whose.max()) + 1
    order = np.argsort(SeededEntropy(seed).spawn("split").words(n_people, np.uint64), kind="stable")
    is_unseen = np.isin(whose, order[: n_people // UNSEEN_PART])
    unseen, asked = np.flatnonzero(is_unseen), np.flatnonzero(~is_unseen)
    if min(len(np.unique(labels[part])) for part in (unseen, asked)) < 2:
        aside = f"{len(unseen):,} {'is' if len(unseen) == 1 else 'are'} set aside for testing"
        raise SpecError(
            "SIM-003",
            f"Of {counted(n, 'row')}, {aside}, and one of the two parts has fewer than two different labels.",
            why="A model is tried on rows that it has not seen, and both parts need rows of two labels.",
            fix=f"Give more rows{'' if person is None else f' of different {shown(person)}'}, or another --seed.",
        )
    take = [{name: column[part] for name, column in encoded.items()} for part in (asked, unseen)]
    return Split(
        take[0],
        labels[asked],
        take[1],
        labels[unseen],
        None if holders is None else holders[asked],
        0 if holders is None else int(holders.max()) + 1,
        None if person is None else whose[asked],
    )


def numbers_of_names(columns: Columns, name: str) -> Ints:
    """A number for whoever each row belongs to."""
    if name not in columns:
        raise missing_column(name, len(list(columns)))
    texts = to_texts(name, as_column(name, columns[name]))
    gone = np.array([text is None for text in texts])
    if gone.any():
        raise SpecError("DATA-005", f"{name}: {where(gone)} missing.", why="It tells whose a row is.", fix="Fill in or remove the rows.")
    return np.unique(np.array(texts, str), return_inverse=True)[1].astype(np.int64)


def who_stays(n: int, task: Task) -> npt.NDArray[np.bool_]:
    """Which of n people, or devices, do not drop out.

    Raises
    ------
    UsageError
        ``SIM-003``: nobody is left.
    """
    entropy: Entropy = task.entropy.spawn("dropout")
    stays = entropy.below_many(_FINE, n) >= task.dropout * _FINE if task.dropout else np.ones(n, bool)
    if not stays.any():
        raise UsageError(
            "SIM-003", f"With a dropout of {task.dropout} nobody was left to answer.", fix="Give more rows, or a smaller --dropout."
        )
    return stays
