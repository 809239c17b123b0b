"""The conditions of SDQ: which keys go together, those of its sums, and who may choose together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from shoal.protocols.sdq.params import MAX_COMMITTEE, MAX_SCORES, committee_size
from shoal.study.conditions_sums import Members, no_colluders, number_of, survivors
from shoal.study.problems import Problem

if TYPE_CHECKING:
    from shoal.study.settings import SDQ
    from shoal.study.spec import Study


def conditions_sdq(study: Study, table: SDQ) -> Iterator[Problem]:
    """What breaks a condition of SDQ."""
    strange = list(_strange_keys(study, table))
    # Numbers are compared only where the keys that they belong to have a meaning.
    yield from strange or _numbers(study, table)


def _strange_keys(study: Study, table: SDQ) -> Iterator[Problem]:
    if table.noise == "two-selected" and (study.variant == "plus" or study.trust == "local"):
        yield Problem(
            "SPEC-022",
            ("sdq", "noise"),
            "Two selected databases add the noise only in the paper's variant with secure sums.",
            'noise = "all-contribute"',
        )
    if table.learner == "naive-bayes" and study.variant == "paper":
        yield Problem("SPEC-022", ("sdq", "learner"), "The paper learns trees; naive Bayes belongs to plus.", 'learner = "tree"')
    if table.choice is not None and study.variant == "paper":
        yield Problem(
            "SPEC-022",
            ("sdq", "choice"),
            "choice has no meaning in the paper's variant, where the miner chooses by noisy counts.",
            'Remove choice, or variant = "plus"',
        )
    elif table.learner == "naive-bayes":
        for key in ("depth", "choice"):
            if getattr(table, key) is not None:
                yield Problem(
                    "SPEC-022",
                    ("sdq", key),
                    f"{key} has no meaning for naive Bayes, which has no splits.",
                    f'Remove {key}, or learner = "tree"',
                )
    if study.trust == "local":
        yield from no_colluders(_members(study, table))


def _numbers(study: Study, table: SDQ) -> Iterator[Problem]:
    members = _members(study, table)
    wrong = list(number_of(members, is_sum=study.trust == "secure-sum"))
    if wrong:
        yield from wrong
    elif table.noise == "two-selected":
        yield from _selected(table, members.minimum)
    elif study.trust == "secure-sum":
        yield from survivors(members)
        yield from _committee(table, len(study.feature))


def _members(study: Study, table: SDQ) -> Members:
    return Members("sdq", "n_databases", "databases", table.n_databases, study.participation.minimum, table.max_colluders)


def _committee(table: SDQ, n_features: int) -> Iterator[Problem]:
    n, c, most = table.n_databases, table.max_colluders, min(table.n_databases, MAX_COMMITTEE)
    if table.choice == "mpc" and committee_size(c) > most:
        yield Problem(
            "SPEC-021",
            ("sdq", "choice"),
            f'choice = "mpc" needs a committee with an honest majority: {committee_size(c)} databases where {c} may collude. '
            + (f"There are {n}." if n <= MAX_COMMITTEE else f"A committee has at most {MAX_COMMITTEE}."),
            f'choice = "sums", or max_colluders = {(most - 1) // 2}',
        )
    elif table.choice == "mpc" and n * n_features > MAX_SCORES:
        yield Problem(
            "SPEC-021",
            ("sdq", "choice"),
            f'choice = "mpc" with {n} databases and {n_features:,} features: a committee cannot take that many scores at once.',
            f'choice = "sums", or at most {MAX_SCORES // n:,} features',
        )


def _selected(table: SDQ, minimum: int) -> Iterator[Problem]:
    """Two databases are selected by a joint computation of all; without an honest majority colluders would know them all."""
    n, c = table.n_databases, table.max_colluders
    if n > MAX_COMMITTEE:
        yield Problem(
            "SPEC-021",
            ("sdq", "n_databases"),
            f"n_databases = {n}: two databases are selected by a joint computation of all of them, which at most {MAX_COMMITTEE} can make.",
            f'noise = "all-contribute", or n_databases = {MAX_COMMITTEE}',
        )
    if minimum < n:
        yield Problem(
            "SPEC-021",
            ("participation", "minimum"),
            f"minimum = {minimum}, but with two selected databases all {n} must answer: nobody knows whose noise would be missing.",
            f"minimum = {n}",
        )
    if committee_size(c) > n:
        yield Problem(
            "SPEC-021",
            ("sdq", "max_colluders"),
            f"max_colluders = {c} of {n} leaves no honest majority, which selecting two databases jointly needs.",
            f'max_colluders = {(n - 1) // 2}, or noise = "all-contribute"',
        )
