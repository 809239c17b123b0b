"""``shoal audit``: measure a lower bound on epsilon and compare it with the claim.

Both commands end with exit code 7 if the bound refutes the claim, and ``study`` also if something
else that leaves a peer depends on its rows. A bound is rounded down: rounded up it would state more
than was measured.
"""

from __future__ import annotations

import math
from pathlib import Path

from cyclopts import App

from shoal.audit import mechanisms
from shoal.audit import study as studies
from shoal.audit.bound import MAX_SAMPLES, EpsilonBound
from shoal.audit.replay import ReplayResult
from shoal.cli.output import emit
from shoal.entropy import SystemEntropy
from shoal.errors import LocalProtocolError
from shoal.privacy.accountant import Loss
from shoal.privacy.events import Event
from shoal.privacy.rounding import (
    float_from_grains,
    format_epsilon,
    format_epsilon_down,
    from_grains,
)
from shoal.study.loader import load_study
from shoal.text import escape_text, format_count, shell_quote

app = App(
    name="audit",
    help="Measure a lower bound on epsilon and compare it with the claim.",
    help_format="markdown",
)


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
    """Run one mechanism on two neighbouring inputs and bound its epsilon from the outputs.

    The exit code is 7 if the bound is above the claim: the mechanism then reveals more than it
    claims.

    Parameters
    ----------
    name
        random-response, rappor, pq, subset-selection, k-closest, discrete-laplace,
        discrete-gaussian, exponential, noisy-max, laplace-shares, gaussian-shares or
        noisy-max-shares.
    epsilon
        The budget of the mechanism.
    cardinality
        Number of cells of a value, of candidates of a choice, or of weights of a direction.
    samples
        Outputs to draw for each of the two inputs.
    confidence
        Probability that the bound is correct.
    json
        Print one JSON object.
    """
    audited = mechanisms.make_target(name, epsilon, cardinality)
    claim = audited.event
    bound = mechanisms.audit_mechanism(audited, samples, confidence, SystemEntropy())
    is_broken = bound.epsilon > claim.epsilon
    again = (
        f"shoal audit mechanism {name} --epsilon {epsilon} --cardinality {cardinality} "
        f"--samples {min(4 * samples, MAX_SAMPLES)}"
    )
    lines = [
        ("mechanism", claim.mechanism),
        *_format_claim(claim),
        *_format_bound(bound, confidence, f"{samples} of each of two neighbours"),
        _format_verdict(
            bound,
            claim,
            "the bound is above the claim: this mechanism reveals more than it claims"
            if is_broken
            else None,
        ),
    ]
    emit(
        claim.to_dict() | _make_bound_data(bound, confidence, samples, is_broken=is_broken),
        _format_lines(lines),
        json=json,
        next_command=again,
    )
    if is_broken:
        raise SystemExit(LocalProtocolError.exit_code)


@app.command
def study(
    study: Path, /, *, samples: int | None = None, confidence: float = 0.999, json: bool = False
) -> None:
    """Run the peers of a study with neighbouring rows, and bound the epsilon of all they send.

    The claim is the plain sum that the label states, without free questions, which the audit does
    not ask. Bounds are computed from the parts of an output that depend on the rows, from single
    numbers and pairs of numbers of the reports, and from a classifier that is trained on all bytes.
    Peers are also replayed with neighbouring rows and the same random bits: all that leaves outside
    the priced reports must be equal.

    The exit code is 7 if a bound, or the charge in a peer's ledger, is above the claim, or if a
    replay differs. For secure sums all peers run together, and the label's number of colluders
    helps the readers of the sums. A lower bound is no proof: an audit can miss a leak.

    Parameters
    ----------
    study
        The study file.
    samples
        Peers to run with each of the rows, or studies for secure sums. By default 4000 for AnonML
        and DDML, 200000 for SDQ and PFDS, and 100000 for PFDS with secure sums.
    confidence
        Probability that all bounds together are correct.
    json
        Print one JSON object.
    """
    spec = load_study(study)
    samples = studies.choose_samples(spec) if samples is None else samples
    found = studies.audit_study(spec, samples, confidence, SystemEntropy())
    sample_noun = "studies" if studies.has_joint_runs(spec) else "peers"
    lines = [
        ("study", escape_text(spec.title)),
        *_format_claim(found.claim),
        ("ledger", f"charges epsilon {format_epsilon(from_grains(found.charge))} to a peer"),
        (
            "packets",
            f"at most {found.packets} from a peer"
            + ("" if found.n_phases is None else f", in {format_count(found.n_phases, 'phase')}"),
        ),
        *_format_bound(
            found.bound, confidence, f"{samples} {sample_noun} with {found.description}"
        ),
        ("seen in", f"{found.seen_in}, by peers with {found.rows[0]} or with {found.rows[1]}"),
        ("tests", f"{found.n_tests}; the confidence holds for all of them together"),
        ("replays", _format_replay(found.replay)),
        ("limits", _LIMITS),
        _format_verdict(found.bound, found.claim, found.fault),
    ]
    data = found.claim.to_dict() | _make_bound_data(
        found.bound, confidence, samples, is_broken=found.fault is not None
    )
    data |= {
        "study": str(study),
        "title": spec.title,
        "ledger": float_from_grains(found.charge),
        "packets": found.packets,
        "phases": found.n_phases,
        "rows": list(found.rows),
        "seen_in": found.seen_in,
        "tests": found.n_tests,
        "replays": found.replay.n,
        "leak": found.replay.leak,
    }
    emit(data, _format_lines(lines), json=json, next_command=f"shoal check {shell_quote(study)}")
    if found.fault is not None:
        raise SystemExit(LocalProtocolError.exit_code)


_LIMITS = (
    "a lower bound is no proof: rare leaks and leaks in a form that was not searched can remain; "
    "free questions, delivery, its timing and the inside of joint computations are not covered"
)


def _format_replay(replay: ReplayResult) -> str:
    if replay.leak is None or replay.rows is None:
        return f"{replay.n} with neighbouring rows: all that leaves outside the reports is equal"
    return f"{replay.leak} differs, by peers with {replay.rows[0]} or with {replay.rows[1]}"


def _format_claim(claim: Event | Loss) -> list[tuple[str, str]]:
    return [
        ("claim", f"epsilon {format_epsilon(claim.epsilon)}, delta {format_epsilon(claim.delta)}"),
        ("unit", str(claim.scope.unit)),
        ("relation", str(claim.scope.relation)),
        ("against", claim.scope.adversary),
    ]


def _format_bound(bound: EpsilonBound, confidence: float, samples: str) -> list[tuple[str, str]]:
    return [
        (
            "bound",
            f"epsilon at least {format_epsilon_down(bound.epsilon)}, with confidence "
            f"{confidence:g}",
        ),
        ("samples", samples),
        (
            "evidence",
            f"a set of outputs chosen on one half of the samples has {bound.hits_1} and "
            f"{bound.hits_0} of {bound.n} in the other half",
        ),
    ]


def _format_verdict(bound: EpsilonBound, claim: Event | Loss, fault: str | None) -> tuple[str, str]:
    if fault is not None:
        return "verdict", f"BROKEN: {fault}"
    return (
        "verdict",
        f"consistent: the bound is {math.floor(100 * bound.epsilon / claim.epsilon)} % of the "
        "claim, and not above it",
    )


def _make_bound_data(
    bound: EpsilonBound, confidence: float, samples: int, *, is_broken: bool
) -> dict[str, object]:
    return {
        "bound": bound.epsilon,
        "confidence": confidence,
        "samples": samples,
        "verdict": "broken" if is_broken else "consistent",
    }


def _format_lines(lines: list[tuple[str, str]]) -> str:
    return "\n".join(f"{label:<10}{text}" for label, text in lines)
