"""``shoal audit``: measure a lower bound on epsilon and hold it against the claim."""

from __future__ import annotations

import math

from cyclopts import App

from shoal.audit.bound import EpsilonBound
from shoal.audit.mechanisms import MAX_SAMPLES, SAMPLES, audit, subject
from shoal.cli.output import emit
from shoal.entropy import SystemEntropy
from shoal.errors import LocalProtocolError
from shoal.privacy.events import Event
from shoal.privacy.rounding import show, show_allowed

app = App(name="audit", help="Measure a lower bound on epsilon and hold it against the claim.", help_format="markdown")


@app.command
def mechanism(
    name: str,
    /,
    *,
    epsilon: float = 1.0,
    cardinality: int = 16,
    samples: int = SAMPLES,
    confidence: float = 0.999,
    json: bool = False,
) -> None:
    """Run one mechanism on two neighbouring inputs and bound its epsilon from what comes out.

    The exit code is 7 if the bound is above the claim: then the mechanism reveals more than it says.

    Parameters
    ----------
    name
        random-response, rappor, pq, subset-selection, discrete-laplace, discrete-gaussian, exponential or noisy-max.
    epsilon
        The budget to set the mechanism up with.
    cardinality
        Cells that a value is one of, or candidates to choose from.
    samples
        Outputs to draw for each of the two inputs.
    confidence
        How sure the bound must be.
    json
        Print one JSON object.
    """
    audited = subject(name, epsilon, cardinality)
    claim = audited.event
    bound = audit(audited, samples, confidence, SystemEntropy())
    is_broken = bound.epsilon > claim.epsilon
    data = claim.to_dict() | {
        "bound": bound.epsilon,
        "confidence": confidence,
        "samples": samples,
        "verdict": "broken" if is_broken else "consistent",
    }
    again = f"shoal audit mechanism {name} --epsilon {epsilon} --cardinality {cardinality} --samples {min(4 * samples, MAX_SAMPLES)}"
    emit(data, _text(claim, bound, confidence, samples), json=json, next_command=again)
    if is_broken:
        raise SystemExit(LocalProtocolError.exit_code)


def _text(claim: Event, bound: EpsilonBound, confidence: float, samples: int) -> str:
    if bound.epsilon > claim.epsilon:
        verdict = "BROKEN: the bound is above the claim, so this mechanism reveals more than it says"
    else:
        verdict = f"consistent: the bound is {math.floor(100 * bound.epsilon / claim.epsilon)} % of the claim, and not above it"
    lines = [
        ("mechanism", claim.mechanism),
        ("claim", f"epsilon {show(claim.epsilon)}, delta {show(claim.delta)}"),
        ("unit", str(claim.scope.unit)),
        ("relation", str(claim.scope.relation)),
        ("against", claim.scope.adversary),
        # A lower bound is rounded down: rounded up it would say more than was seen.
        ("bound", f"epsilon at least {show_allowed(bound.epsilon)}, with confidence {confidence:g}"),
        ("samples", f"{samples} of each of two neighbours"),
        ("evidence", f"a set of outputs chosen on one half was hit {bound.hits_1} and {bound.hits_0} times of {bound.n} in the other"),
        ("verdict", verdict),
    ]
    return "\n".join(f"{label:<10}{text}" for label, text in lines)
