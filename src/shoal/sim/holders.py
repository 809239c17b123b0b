"""Who holds which rows of a simulated study, who is there to answer, and which of a person's rows are used: databases, or organisations."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.errors import SpecError, UsageError
from shoal.names import counted
from shoal.protocols.sdq.rows import deal
from shoal.sim.runs import Task
from shoal.sim.scores import Ints
from shoal.study.conditions_sums import Members
from shoal.tables import limit_rows

_WHY = "The noise is made for that many shares. The others refuse to open it, and what they sent is spent."
_FIX = "A smaller --dropout, or a smaller minimum under [participation]."


def holders_of(members: Members, n_rows: int, holders: Ints | None, n_holders: int, entropy: Entropy) -> Ints:
    """Who holds each row: the one that the table names, or one to whom it is dealt.

    Parameters
    ----------
    members
        Those whom the study has.
    n_rows
        How many rows there are.
    holders, n_holders
        ``(n_rows,)`` the holder of each, and how many the table names; None where it names none.
    entropy
        By which rows are dealt.

    Raises
    ------
    SpecError
        ``SIM-007``: the table does not name as many as the study has.
    """
    if holders is None:
        return deal(n_rows, members.n, entropy)
    if n_holders != members.n:
        raise SpecError(
            "SIM-007",
            f"The table names {counted(n_holders, members.noun.removesuffix('s'))}, and the study has {members.key} = {members.n}.",
            why="The noise, and what each of them is asked, are made for that many.",
            fix=f"{members.key} = {n_holders} under [{members.table}], or do not say who holds which row, and they are dealt at random.",
        )
    return holders


def who_answers(members: Members, task: Task, *, is_sum: bool = True, why: str = _WHY, fix: str = _FIX) -> npt.NDArray[np.bool_]:
    """Which members do not drop out: all but the task's share of them, rounded up, drawn at random.

    Parameters
    ----------
    is_sum
        Whether what they send is summed, which needs as many as the study says.
    why, fix
        What to say where too few are left for a sum.

    Raises
    ------
    UsageError
        ``SUM-003``: fewer are left than a sum needs. ``SIM-003``: nobody is left.
    """
    n, minimum = members.n, members.minimum
    n_left = n - math.ceil(round(task.dropout * n, 9))
    told = f"With a dropout of {task.dropout}, {n_left} of {n} {members.noun} are left"
    if is_sum and n_left < minimum:
        raise UsageError("SUM-003", f"{told}; a sum of fewer than {minimum} is not opened.", why=why, fix=fix)
    if not n_left:
        raise UsageError("SIM-003", f"{told} to answer.", fix="A smaller --dropout.")
    return deal(n, n, task.entropy.spawn("dropout")) < n_left


def is_used(whose: Ints, people: Ints | None, max_rows: int) -> npt.NDArray[np.bool_]:
    """Which rows holders use: of each person the first ones, as many as the study allows, with each holder.

    Parameters
    ----------
    whose
        ``(n,)`` the holder of each row.
    people
        ``(n,)`` the person of each row; None where every row is by itself.
    max_rows
        Most rows of one person.
    """
    rows = np.arange(len(whose))
    if people is None:
        return np.ones(len(rows), bool)
    # To each holder a person is another one: it cannot know of the others.
    people_of = whose * (int(people.max(initial=0)) + 1) + people
    return np.isin(rows, limit_rows({"row": rows, "person": people_of}, "person", max_rows)[0]["row"])
