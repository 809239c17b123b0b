"""Databases and organisations of a simulated study: their rows, and those that drop out.

`shoal.simulation.sdq`, `pfds` and `queries` call these functions. A holder uses only the first rows
of each person, up to the study's limit, as a real one does.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.data.tables import limit_rows
from shoal.entropy import Entropy
from shoal.errors import SpecError, UsageError
from shoal.protocols.sdq.params import assign_rows
from shoal.simulation.metrics import EncodedColumns, Ints
from shoal.simulation.run import RunTask, Split
from shoal.study.constraints import DeclaredRoster
from shoal.text import format_count

_WHY = (
    "The noise is calibrated for that many shares. The remaining members refuse to open the sum, "
    "and the budget for what they sent is spent."
)
_FIX = "Set a smaller --dropout, or a smaller minimum under [participation]."


def assign_holders(
    members: DeclaredRoster, n_rows: int, holders: Ints | None, n_holders: int, entropy: Entropy
) -> Ints:
    """Return the holder of each row: the one that the table names, or a random one.

    Parameters
    ----------
    holders, n_holders
        ``(n_rows,)`` the holder of each row, and the number of holders in the table; None if the
        table names no holders.

    Raises
    ------
    SpecError
        ``SIM-007``: the table does not name the number of holders that the study has.
    """
    if holders is None:
        return assign_rows(n_rows, members.n, entropy)
    if n_holders != members.n:
        raise SpecError(
            "SIM-007",
            f"The table names {format_count(n_holders, members.noun.removesuffix('s'))}; the "
            f"study has {members.key} = {members.n}.",
            why="The noise and the questions depend on that number.",
            fix=f"Set {members.key} = {n_holders} under [{members.table}], or remove the column "
            "with the holders; rows are then assigned at random.",
        )
    return holders


def draw_respondents(
    members: DeclaredRoster, task: RunTask, *, is_sum: bool = True, why: str = _WHY, fix: str = _FIX
) -> npt.NDArray[np.bool_]:
    """Return which members do not drop out.

    The task's share of the members, rounded up and drawn at random, drops out.

    Parameters
    ----------
    is_sum
        Whether their answers are summed, which needs the study's minimum.
    why, fix
        Parts of the error if too few members are left for a sum.

    Raises
    ------
    UsageError
        ``SUM-003``: fewer members are left than a sum needs. ``SIM-003``: no member is left.
    """
    n, minimum = members.n, members.minimum
    n_left = n - math.ceil(round(task.dropout * n, 9))
    left = f"With a dropout of {task.dropout}, {n_left} of {n} {members.noun} are left"
    if is_sum and n_left < minimum:
        raise UsageError(
            "SUM-003", f"{left}; a sum of fewer than {minimum} is not opened.", why=why, fix=fix
        )
    if not n_left:
        raise UsageError("SIM-003", f"{left} to answer.", fix="Set a smaller --dropout.")
    return assign_rows(n, n, task.entropy.spawn("dropout")) < n_left


def select_used_rows(owners: Ints, people: Ints | None, max_rows: int) -> npt.NDArray[np.bool_]:
    """Return which rows the holders use: the first `max_rows` of each person at each holder.

    Parameters
    ----------
    owners
        ``(n,)`` the holder of each row.
    people
        ``(n,)`` the person of each row; None if the table names no people.
    """
    rows = np.arange(len(owners))
    if people is None:
        return np.ones(len(rows), bool)
    # A person at two holders counts as two people: a holder does not know the rows of others.
    person_at_holder = owners * (int(people.max(initial=0)) + 1) + people
    return np.isin(
        rows, limit_rows({"row": rows, "person": person_at_holder}, "person", max_rows)[0]["row"]
    )


def split_by_member(
    members: DeclaredRoster, task: RunTask, split: Split, max_rows: int
) -> list[tuple[EncodedColumns, npt.NDArray[Any]]]:
    """Return the training rows that each member uses, in the order of the members."""
    owners = assign_holders(
        members,
        len(split.train_labels),
        split.holders,
        split.n_holders,
        task.entropy.spawn("machines", "rows"),
    )
    used = select_used_rows(owners, split.people, max_rows)
    parts = [np.flatnonzero(used & (owners == member)) for member in range(members.n)]
    return [
        (
            {name: column[part] for name, column in split.train_columns.items()},
            split.train_labels[part],
        )
        for part in parts
    ]
