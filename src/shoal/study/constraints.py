"""One problem with a study; constraints shared by secure sums.

The validation of studies and the protocol modules of this package call these functions. A secure
sum has the same conditions in every protocol: how many members there are, how many may be absent,
and how many may collude.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True)
class StudyProblem:
    """One problem with a study.

    Parameters
    ----------
    code
        A key of `shoal.errors.CODES`.
    path
        Path of the wrong key from the top of the file: ``("feature", 2, "bins")``.
    """

    code: str
    path: KeyPath
    what: str
    fix: str | None = None


MIN_MEMBERS = 3
"""With two members, each can subtract its own counts from the sum."""
MAX_MEMBERS = 1_000
"""Lists of keys and shares of this number of members fit in their messages."""


@dataclass(frozen=True)
class DeclaredRoster:
    """The roster that a study declares.

    Parameters
    ----------
    table, key
        Table and key of the study file with the number of members.
    noun
        Name of the members, in the plural.
    n, minimum, max_colluders
        N, the fewest members that must answer, and C.
    """

    table: str
    key: str
    noun: str
    n: int
    minimum: int
    max_colluders: int


def check_member_count(members: DeclaredRoster, *, is_sum: bool) -> Iterator[StudyProblem]:
    """Yield a problem if there are too few or too many members, or fewer than must answer."""
    n, noun = members.n, members.noun
    if is_sum and n < MIN_MEMBERS:
        yield StudyProblem(
            "SPEC-021",
            (members.table, members.key),
            f"{members.key} = {n}: each of two {noun} could subtract its own counts from the sum.",
            f"{members.key} = {MIN_MEMBERS}",
        )
    elif is_sum and n > MAX_MEMBERS:
        yield StudyProblem(
            "SPEC-021",
            (members.table, members.key),
            f"{members.key} = {n}: a secure sum has at most {MAX_MEMBERS:,} members.",
            f"{members.key} = {MAX_MEMBERS}",
        )
    elif members.minimum > n:
        yield StudyProblem(
            "SPEC-021",
            ("participation", "minimum"),
            f"minimum = {members.minimum}, but there are {n} {noun}.",
            f"minimum = {n}",
        )


def check_survivor_quorum(members: DeclaredRoster) -> Iterator[StudyProblem]:
    """Yield a problem if two lists of survivors may have no honest signer in common.

    An honest member signs one list only. Two valid lists with a common honest signer are therefore
    the same list.
    """
    n, minimum, c, noun = members.n, members.minimum, members.max_colluders, members.noun
    if 2 * minimum > n + c:
        return
    fixes = [f"minimum = {(n + c) // 2 + 1}"] if c < n else []
    fixes += [f"max_colluders = {2 * minimum - n - 1}"] if 2 * minimum > n else []
    yield StudyProblem(
        "SPEC-021",
        ("participation", "minimum"),
        f"minimum = {minimum} of {n} {noun}, with max_colluders = {c}: two lists of survivors, "
        f"each signed by {minimum}, may have no honest signer in common. A coordinator that shows "
        f"different lists to different {noun} could then read the counts of a single one. Twice "
        f"the minimum must be more than {members.key} + max_colluders.",
        ", or ".join(fixes) or f"minimum = {n}, with max_colluders = {n - 1} at most",
    )


def check_no_colluders(members: DeclaredRoster) -> Iterator[StudyProblem]:
    """Yield a problem if a study of trust local declares colluders."""
    if members.max_colluders:
        yield StudyProblem(
            "SPEC-022",
            (members.table, "max_colluders"),
            "max_colluders has no meaning with trust local: everyone else may collude.",
            "Remove max_colluders.",
        )


def compute_default_colluders(n: int) -> int:
    """Return a third of `n` members, rounded up, but less than half of them.

    A joint choice or selection needs an honest majority.
    """
    return min(-(-n // 3), (n - 1) // 2)


def default_colluders(n: int | None, trust: str) -> dict[str, int]:
    """Return the default of ``max_colluders`` for `n` members; empty without secure sums."""
    return {"max_colluders": compute_default_colluders(n)} if trust == "secure-sum" and n else {}


def read_member_count(table: Mapping[str, object], key: str) -> int | None:
    """Return the number of members in a table that is not validated yet; None if unusable."""
    n = table.get(key)
    return n if type(n) is int and n > 0 else None


def describe_sum_trust(n: int, max_colluders: int, noun: str, reader: str) -> str:
    """Return the assumption of a secure sum about its members, for the label."""
    few = f"at most {max_colluders}" if max_colluders else "none"
    return f"{few} of the {n} {noun} may help {reader}. The coordinator need not be trusted"


def describe_dropout(n: int, minimum: int, noun: str, also: str = "") -> str:
    """Return the consequence of too many absent members, for the label.

    Parameters
    ----------
    also
        A further reason to end, in words that can follow "or".
    """
    lost = f"more than {n - minimum}" if minimum < n else "any"
    drop = "drop out" if minimum < n else "drops out"
    more = f", or {also}," if also else ""
    return (
        f"if {lost} of the {n} {noun} {drop}{more or ','} the study ends without a result. What "
        "was sent stays spent"
    )


def suggest_names(names: tuple[str, ...]) -> str:
    """Return a fix that lists the names to choose from."""
    return "Choose among: " + ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
