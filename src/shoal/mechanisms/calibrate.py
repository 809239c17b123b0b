"""Choose the mechanism with the least expected error.

AnonML's plan calls `choose_mechanism` for each question; the choice depends only on public
parameters.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.errors import MechanismError
from shoal.mechanisms.frequency_oracle import FrequencyOracle
from shoal.mechanisms.randomized_response import RandomizedResponse
from shoal.mechanisms.subset_selection import SubsetSelection
from shoal.mechanisms.unary_encoding import OneTimeRappor, PQPerturbation
from shoal.privacy.events import LOCAL_PERSON, Scope

_CLASSES = (RandomizedResponse, SubsetSelection, PQPerturbation, OneTimeRappor)
MECHANISM_NAMES = tuple(kind.name for kind in _CLASSES)
"""Names of the mechanisms, smallest reports first; the first of equals is chosen."""

_TIE_TOLERANCE = 1e-9


def make_mechanism(
    name: str, epsilon: float, cardinality: int, scope: Scope = LOCAL_PERSON
) -> FrequencyOracle:
    """Make the mechanism with a name; raise ``MECH-001`` if there is none."""
    for kind in _CLASSES:
        if kind.name == name:
            return kind(epsilon, cardinality, scope)
    raise MechanismError(
        "MECH-001",
        f"There is no mechanism {name!r} for one value among cells.",
        fix=f"Use one of: {', '.join(MECHANISM_NAMES)}.",
    )


def choose_mechanism(
    epsilon: float,
    cardinality: int,
    n: int,
    among: Sequence[str] = MECHANISM_NAMES,
    scope: Scope = LOCAL_PERSON,
) -> FrequencyOracle:
    """Return the mechanism with the least expected error for n reports.

    Notes
    -----
    Ref: AnonML §VII-D3. n scales the errors of all mechanisms by the same factor, so the choice is
    the same for any number of reports.

    Examples
    --------
    >>> choose_mechanism(1.0, 16, 10_000).name, choose_mechanism(4.0, 4, 10_000).name
    ('subset-selection', 'random-response')
    >>> choose_mechanism(1.0, 16, 10_000, among=("random-response", "rappor", "pq")).name
    'pq'
    """
    candidates = [make_mechanism(name, epsilon, cardinality, scope) for name in among]
    min_error = min(candidate.expected_error(n) for candidate in candidates)
    # Sets of one cell differ from random response only in the last of 64 bits. Such a difference
    # must not decide.
    return next(
        candidate
        for candidate in candidates
        if candidate.expected_error(n) <= min_error * (1 + _TIE_TOLERANCE)
    )
