"""The conditions of a secure sum, the same for every protocol that sums: how many members there are, may be away, and may collude."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shoal.study.problems import Problem

FEWEST_MEMBERS = 3
"""Of two members each knows the other's counts from the sum and its own."""
MOST_MEMBERS = 1_000
"""Lists of keys and shares of so many fit in their messages."""


@dataclass(frozen=True)
class Members:
    """Those on the roster, as a study declares them.

    Parameters
    ----------
    table, key
        Where the study says how many there are.
    noun
        What they are called there, several of them.
    n, minimum, max_colluders
        N, the fewest that must answer, and C.
    """

    table: str
    key: str
    noun: str
    n: int
    minimum: int
    max_colluders: int


def number_of(members: Members, *, is_sum: bool) -> Iterator[Problem]:
    """Too few for a sum, or fewer than must answer."""
    n, noun = members.n, members.noun
    if is_sum and n < FEWEST_MEMBERS:
        yield Problem(
            "SPEC-021",
            (members.table, members.key),
            f"{members.key} = {n}: from the sum and its own counts each of two {noun} knows the other's.",
            f"{members.key} = {FEWEST_MEMBERS}",
        )
    elif is_sum and n > MOST_MEMBERS:
        yield Problem(
            "SPEC-021",
            (members.table, members.key),
            f"{members.key} = {n}: a secure sum has at most {MOST_MEMBERS:,} members.",
            f"{members.key} = {MOST_MEMBERS}",
        )
    elif members.minimum > n:
        yield Problem("SPEC-021", ("participation", "minimum"), f"minimum = {members.minimum}, but there are {n} {noun}.", f"minimum = {n}")


def survivors(members: Members) -> Iterator[Problem]:
    """Any two lists of survivors that enough members sign must have an honest signer in common, for an honest one signs one list only."""
    n, minimum, c, noun = members.n, members.minimum, members.max_colluders, members.noun
    if 2 * minimum > n + c:
        return
    fixes = [f"minimum = {(n + c) // 2 + 1}"] if c < n else []
    fixes += [f"max_colluders = {2 * minimum - n - 1}"] if 2 * minimum > n else []
    yield Problem(
        "SPEC-021",
        ("participation", "minimum"),
        f"minimum = {minimum} of {n} {noun}, with max_colluders = {c}: two lists of survivors, each signed by {minimum}, may have no "
        f"honest signer in common, and whoever shows some {noun} one list and others the other can open the counts of a single one. "
        f"Twice the minimum must be more than {members.key} + max_colluders.",
        ", or ".join(fixes) or f"minimum = {n}, with max_colluders = {n - 1} at most",
    )


def no_colluders(members: Members) -> Iterator[Problem]:
    """Trust local names no colluders."""
    if members.max_colluders:
        yield Problem(
            "SPEC-022",
            (members.table, "max_colluders"),
            "max_colluders has no meaning with trust local: everyone else may collude.",
            "Remove max_colluders.",
        )
