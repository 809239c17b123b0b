"""What a peer and an aggregator of PFDS make sure of before anything is asked, and what names a question of a secure sum."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

from shoal.errors import LocalProtocolError
from shoal.messages.codec import encode
from shoal.privacy.events import Event
from shoal.privacy.rounding import grains_up
from shoal.privacy.zcdp import epsilon_to_rho
from shoal.protocols.pfds.messages import Ask
from shoal.protocols.pfds.params import Params
from shoal.protocols.sums.terms import Terms


def check_terms(params: Params, terms: Terms) -> None:
    """Refuse a roster and a threshold that do not hold what the study promises.

    Notes
    -----
    Two lists of survivors must have an honest signer in common, and the noise of the honest ones among the survivors must be there.
    """
    n, minimum, colluders = len(terms.roster), params.minimum, params.max_colluders
    if n != params.n_holders or terms.threshold != minimum or 2 * minimum <= n + colluders:
        raise LocalProtocolError(
            "PROTO-001",
            f"{n} holders, of which {terms.threshold} make a sum, cannot keep what a study of {params.n_holders} promises.",
            why="Its roster, minimum and colluders do not fit together.",
        )


def checked_prices(params: Params, prices: Mapping[str, Event]) -> Mapping[str, Event]:
    """The prices of all questions, if they are within the study's budget together: an aggregator may ask all of them."""
    if params.is_bare:
        raise LocalProtocolError(
            "PROTO-001",
            "A holder was to answer without noise.",
            why="Such an answer has no price, and no participant can agree to it.",
            fix="Give the study an epsilon; what is possible without noise can be simulated.",
        )
    if params.delta:
        # A release without a rho is not one of a study with a delta.
        rhos = (math.inf if event.rho is None else event.rho for event in prices.values())
        is_within = math.fsum(rhos) <= epsilon_to_rho(params.epsilon, params.delta)
    else:
        is_within = sum(grains_up(event.epsilon) for event in prices.values()) <= grains_up(params.epsilon)
    if not is_within:
        raise LocalProtocolError("PROTO-001", "The questions of a study cost more together than it says.")
    return prices


def digest_of(ask: Ask) -> bytes:
    """What is asked, in 32 bytes: everyone computes it from the message that they were given."""
    return hashlib.sha256(encode(ask)).digest()
