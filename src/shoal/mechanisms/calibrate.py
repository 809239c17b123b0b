"""Which mechanism answers best: the one of least expected error for the budget and the number of cells."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.errors import MechanismError
from shoal.mechanisms.bits import OneTimeRappor, PQPerturbation
from shoal.mechanisms.reports import FrequencyMechanism
from shoal.mechanisms.response import RandomResponse
from shoal.mechanisms.subset import SubsetSelection
from shoal.privacy.events import LOCAL_PERSON, Scope

_CLASSES = (RandomResponse, SubsetSelection, PQPerturbation, OneTimeRappor)
NAMES = tuple(kind.name for kind in _CLASSES)
"""The mechanisms by name, smallest reports first: among equals the first is chosen."""

_LEVEL = 1e-9


def mechanism(name: str, epsilon: float, cardinality: int, scope: Scope = LOCAL_PERSON) -> FrequencyMechanism:
    """The mechanism of that name."""
    for kind in _CLASSES:
        if kind.name == name:
            return kind(epsilon, cardinality, scope)
    raise MechanismError("MECH-001", f"There is no mechanism {name!r} for one value among cells.", fix=f"Use one of: {', '.join(NAMES)}.")


def best(epsilon: float, cardinality: int, n: int, among: Sequence[str] = NAMES, scope: Scope = LOCAL_PERSON) -> FrequencyMechanism:
    """The mechanism of least expected error for n reports.

    Notes
    -----
    Ref: AnonML §VII-D3. n scales the errors of all alike, so that the choice holds for any number of reports.

    Examples
    --------
    >>> best(1.0, 16, 10_000).name, best(4.0, 4, 10_000).name
    ('subset-selection', 'random-response')
    >>> best(1.0, 16, 10_000, among=("random-response", "rappor", "pq")).name
    'pq'
    """
    candidates = [mechanism(name, epsilon, cardinality, scope) for name in among]
    least = min(candidate.expected_error(n) for candidate in candidates)
    # Sets of one cell are random response but for the last of 64 bits: such a difference must not make the choice.
    return next(candidate for candidate in candidates if candidate.expected_error(n) <= least * (1 + _LEVEL))
