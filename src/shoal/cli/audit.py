"""``shoal audit``: measure a lower bound on epsilon and hold it against the claim."""

from __future__ import annotations

import math
from pathlib import Path

from cyclopts import App

from shoal.audit import mechanisms, studies
from shoal.audit.bound import MAX_SAMPLES, EpsilonBound
from shoal.cli.output import emit
from shoal.entropy import SystemEntropy
from shoal.errors import LocalProtocolError
from shoal.names import counted, shell_word, shown
from shoal.privacy.accountant import Loss
from shoal.privacy.events import Event
from shoal.privacy.rounding import float_from_grains, from_grains, show, show_allowed
from shoal.study.load import load

app = App(name="audit", help="Measure a lower bound on epsilon and hold it against the claim.", help_format="markdown")


@app.command
def mechanism(
    name: str,
    /,
    *,
    epsilon: float = 1.0,
    cardinality: int = 16,
    samples: int = mechanisms.SAMPLES,
    confidence: float = 0.999,
    json: bool = False,
) -> None:
    """Run one mechanism on two neighbouring inputs and bound its epsilon from what comes out.

    The exit code is 7 if the bound is above the claim: then the mechanism reveals more than it says.

    Parameters
    ----------
    name
        random-response, rappor, pq, subset-selection, k-closest, discrete-laplace, discrete-gaussian, exponential, noisy-max,
        laplace-shares, gaussian-shares or noisy-max-shares.
    epsilon
        The budget to set the mechanism up with.
    cardinality
        Cells that a value is one of, candidates to choose from, or weights that a direction has.
    samples
        Outputs to draw for each of the two inputs.
    confidence
        How sure the bound must be.
    json
        Print one JSON object.
    """
    audited = mechanisms.subject(name, epsilon, cardinality)
    claim = audited.event
    bound = mechanisms.audit(audited, samples, confidence, SystemEntropy())
    is_broken = bound.epsilon > claim.epsilon
    again = f"shoal audit mechanism {name} --epsilon {epsilon} --cardinality {cardinality} --samples {min(4 * samples, MAX_SAMPLES)}"
    lines = [
        ("mechanism", claim.mechanism),
        *_claim(claim),
        *_found(bound, confidence, f"{samples} of each of two neighbours"),
        _verdict(bound, claim, "the bound is above the claim, so this mechanism reveals more than it says" if is_broken else None),
    ]
    emit(claim.to_dict() | _data(bound, confidence, samples, is_broken=is_broken), _text(lines), json=json, next_command=again)
    if is_broken:
        raise SystemExit(LocalProtocolError.exit_code)


@app.command
def study(study: Path, /, *, samples: int | None = None, confidence: float = 0.999, json: bool = False) -> None:
    """Run the peers of a study from beginning to end with neighbouring rows, and bound the epsilon of all that they send.

    The claim is the plain sum that the label states, without free questions, which are not asked here. The exit code is 7 if the bound,
    or what a peer's ledger counts, is above it. Of secure sums all peers are run together, as many of them in league with those who read
    the sums as the label allows.

    Parameters
    ----------
    study
        The study file.
    samples
        Peers to run with each of some rows, or studies of secure sums. Where nothing is said: 4000 of AnonML and DDML; of SDQ and PFDS,
        where many are drawn at once, 200000, or 100000 with secure sums of PFDS.
    confidence
        How sure the bound must be.
    json
        Print one JSON object.
    """
    spec = load(study)
    samples = studies.usual_samples(spec) if samples is None else samples
    found = studies.audit_study(spec, samples, confidence, SystemEntropy())
    who = "studies" if spec.protocol == "sdq" or spec.trust == "secure-sum" else "peers"
    lines = [
        ("study", shown(spec.title)),
        *_claim(found.claim),
        ("ledger", f"counts epsilon {show(from_grains(found.charged))} for a peer"),
        ("packets", f"at most {found.packets} of a peer" + ("" if found.n_phases is None else f", in {counted(found.n_phases, 'phase')}")),
        *_found(found.bound, confidence, f"{samples} {who} with {found.tried}"),
        ("seen in", f"{found.seen_in}, by peers with {found.rows[0]} or with {found.rows[1]}"),
        _verdict(found.bound, found.claim, found.fault),
    ]
    data = found.claim.to_dict() | _data(found.bound, confidence, samples, is_broken=found.fault is not None)
    data |= {
        "study": str(study),
        "title": spec.title,
        "ledger": float_from_grains(found.charged),
        "packets": found.packets,
        "phases": found.n_phases,
        "rows": list(found.rows),
        "seen_in": found.seen_in,
    }
    emit(data, _text(lines), json=json, next_command=f"shoal check {shell_word(study)}")
    if found.fault is not None:
        raise SystemExit(LocalProtocolError.exit_code)


def _claim(claim: Event | Loss) -> list[tuple[str, str]]:
    return [
        ("claim", f"epsilon {show(claim.epsilon)}, delta {show(claim.delta)}"),
        ("unit", str(claim.scope.unit)),
        ("relation", str(claim.scope.relation)),
        ("against", claim.scope.adversary),
    ]


def _found(bound: EpsilonBound, confidence: float, samples: str) -> list[tuple[str, str]]:
    return [
        # A lower bound is rounded down: rounded up it would say more than was seen.
        ("bound", f"epsilon at least {show_allowed(bound.epsilon)}, with confidence {confidence:g}"),
        ("samples", samples),
        ("evidence", f"a set of outputs chosen on one half was hit {bound.hits_1} and {bound.hits_0} times of {bound.n} in the other"),
    ]


def _verdict(bound: EpsilonBound, claim: Event | Loss, fault: str | None) -> tuple[str, str]:
    if fault is not None:
        return "verdict", f"BROKEN: {fault}"
    return "verdict", f"consistent: the bound is {math.floor(100 * bound.epsilon / claim.epsilon)} % of the claim, and not above it"


def _data(bound: EpsilonBound, confidence: float, samples: int, *, is_broken: bool) -> dict[str, object]:
    return {
        "bound": bound.epsilon,
        "confidence": confidence,
        "samples": samples,
        "verdict": "broken" if is_broken else "consistent",
    }


def _text(lines: list[tuple[str, str]]) -> str:
    return "\n".join(f"{label:<10}{text}" for label, text in lines)
