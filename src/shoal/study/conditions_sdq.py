"""The conditions of SDQ: how many databases must answer, how many of them may collude, and who may choose together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from shoal.protocols.sdq.params import MAX_COMMITTEE, MAX_SCORES, committee_size
from shoal.study.problems import Problem

if TYPE_CHECKING:
    from shoal.study.settings import SDQ
    from shoal.study.spec import Study

FEWEST_DATABASES = 3
"""Of two databases each knows the other's counts from the sum and its own."""


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
    if study.trust == "local" and table.max_colluders:
        yield Problem(
            "SPEC-022",
            ("sdq", "max_colluders"),
            "max_colluders has no meaning with trust local: everyone else may collude.",
            "Remove max_colluders.",
        )


def _numbers(study: Study, table: SDQ) -> Iterator[Problem]:
    n, minimum = table.n_databases, study.participation.minimum
    if study.trust == "secure-sum" and n < FEWEST_DATABASES:
        yield Problem(
            "SPEC-021",
            ("sdq", "n_databases"),
            f"n_databases = {n}: from the sum and its own counts each of two databases knows the other's.",
            f"n_databases = {FEWEST_DATABASES}",
        )
    elif minimum > n:
        yield Problem("SPEC-021", ("participation", "minimum"), f"minimum = {minimum}, but there are {n} databases.", f"minimum = {n}")
    elif table.noise == "two-selected":
        yield from _selected(table, minimum)
    elif study.trust == "secure-sum":
        yield from _survivors(table, minimum)
        yield from _committee(table, len(study.feature))


def _survivors(table: SDQ, minimum: int) -> Iterator[Problem]:
    """Any two lists of survivors that enough members sign must have an honest signer in common, for an honest one signs one list only."""
    n, c = table.n_databases, table.max_colluders
    if 2 * minimum > n + c:
        return
    fixes = [f"minimum = {(n + c) // 2 + 1}"] if c < n else []
    fixes += [f"max_colluders = {2 * minimum - n - 1}"] if 2 * minimum > n else []
    yield Problem(
        "SPEC-021",
        ("participation", "minimum"),
        f"minimum = {minimum} of {n} databases, with max_colluders = {c}: two lists of survivors, each signed by {minimum}, may have no "
        "honest signer in common, and whoever shows some databases one list and others the other can open the counts of a single one. "
        "Twice the minimum must be more than n_databases + max_colluders.",
        ", or ".join(fixes) or f"minimum = {n}, with max_colluders = {n - 1} at most",
    )


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
