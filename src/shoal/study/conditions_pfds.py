"""The conditions of PFDS: which keys belong to the paper's trees, what its trees and sums can bear, and what is not asked of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from shoal.names import counted
from shoal.protocols.pfds.tree import depth_of
from shoal.study.conditions_sums import Members, no_colluders, number_of, survivors
from shoal.study.pfds import params_of
from shoal.study.problems import Problem

if TYPE_CHECKING:
    from shoal.study.settings import PFDS
    from shoal.study.spec import Study

MAX_COUNTS = 100_000
"""Most counts of all tables together: they travel in one message, as do two numbers for each cell in the question of a sum."""

_TREE_KEYS = ("max_depth", "n_candidates", "n_levels", "n_buckets", "labelling", "projection")


def conditions_pfds(study: Study, table: PFDS) -> Iterator[Problem]:
    """What breaks a condition of PFDS."""
    strange = list(_strange_keys(study, table))
    # Numbers are compared only where the keys that they belong to have a meaning.
    yield from strange or _numbers(study, table)


def _strange_keys(study: Study, table: PFDS) -> Iterator[Problem]:
    if study.queries is not None:
        yield Problem(
            "SPEC-022",
            ("queries",),
            "[queries] has no meaning for pfds: what it releases is data, on which everyone may count without asking.",
            "Remove [queries], and count on the release.",
        )
    for key in _TREE_KEYS if study.variant == "plus" else ():
        if getattr(table, key) is not None:
            yield Problem(
                "SPEC-022",
                ("pfds", key),
                f"{key} belongs to the trees of the paper's variant; plus has none.",
                f'Remove {key}, or variant = "paper"',
            )
    if table.projection is False and table.n_levels is not None:
        yield Problem(
            "SPEC-022",
            ("pfds", "n_levels"),
            "n_levels has no meaning without the projection, for which levels are counted.",
            "Remove n_levels, or projection = true",
        )
    if study.variant == "paper" and study.label.range is None and table.n_buckets is not None:
        yield Problem("SPEC-022", ("pfds", "n_buckets"), "n_buckets has a meaning for a numeric label only.", "Remove n_buckets.")
    for i, feature in enumerate(study.feature if study.variant == "paper" else ()):
        if feature.bins is not None:
            yield Problem(
                "SPEC-022",
                ("feature", i, "bins"),
                f"{feature.name}: bins have no meaning in the paper's trees, which choose split values of their own.",
                'Remove bins, or variant = "plus"',
            )
    if study.trust == "local":
        yield from no_colluders(_members(study, table))


def _numbers(study: Study, table: PFDS) -> Iterator[Problem]:
    members = _members(study, table)
    wrong = list(number_of(members, is_sum=study.trust == "secure-sum"))
    yield from wrong
    if study.trust == "secure-sum" and not wrong:
        yield from survivors(members)
    yield from _trees(study, table) if study.variant == "paper" else _cells(study)


def _members(study: Study, table: PFDS) -> Members:
    return Members("pfds", "n_holders", "holders", table.n_holders, study.participation.minimum, table.max_colluders)


def _trees(study: Study, table: PFDS) -> Iterator[Problem]:
    h_max, p, n_features = table.max_depth or 0, table.n_levels or 0, len(study.feature)
    if h_max > n_features:
        yield Problem(
            "SPEC-021",
            ("pfds", "max_depth"),
            f"max_depth = {h_max}, but there {'is' if n_features == 1 else 'are'} {counted(n_features, 'feature')}. "
            "PFDS Algorithm 3: h_max <= |A|.",
            f"max_depth = {n_features}" if n_features > 1 else 'Add a feature, or variant = "plus"',
        )
    elif p > h_max:
        yield Problem(
            "SPEC-021",
            ("pfds", "n_levels"),
            f"n_levels = {p}, but a tree has max_depth = {h_max} levels. PFDS Algorithm 5: p <= h_T.",
            f"n_levels = {h_max}",
        )
    elif depth_of(params_of(study)) < 2:
        yield Problem(
            "SPEC-021",
            ("feature",),
            f"A split on any feature makes more leaves than can be counted for each of {params_of(study).n_outcomes:,} classes.",
            'Group values, or variant = "plus"',
        )
    for i, feature in enumerate(study.feature):
        if feature.range is not None and feature.missing:
            yield Problem(
                "SPEC-021",
                ("feature", i, "missing"),
                f"{feature.name} is a number that may be missing; in the paper's trees a missing number is on neither side of a split.",
                'missing = false, if no row lacks it; or variant = "plus"',
            )


def _cells(study: Study) -> Iterator[Problem]:
    params = params_of(study)
    n_counts = params.n_cells * params.n_sides
    if n_counts > MAX_COUNTS:
        yield Problem(
            "SPEC-021",
            ("feature",),
            f"The tables of {counted(len(study.feature), 'feature')} and the label have {n_counts:,} counts; at most {MAX_COUNTS:,} "
            "can travel together.",
            "Use fewer features or bins, or group values.",
        )
