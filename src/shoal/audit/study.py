"""Audit of a whole study: a bound on the epsilon of everything that a peer sends.

``shoal audit study`` calls `audit_study`. `AUDITED` is the table of this layer; each protocol's
module runs real peers and returns what an adversary sees. The probability of error is divided among
all observations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shoal.audit import anonml, ddml, pfds, sdq
from shoal.audit.bound import EpsilonBound, check_effort
from shoal.audit.observations import AuditedProtocol, Observations
from shoal.audit.replay import ReplayResult
from shoal.entropy import Entropy
from shoal.privacy.accountant import Loss, compose_sequential
from shoal.privacy.rounding import grains_up
from shoal.study.plan import Plan, make_plan
from shoal.study.spec import Study

AUDITED: Mapping[str, AuditedProtocol] = {
    protocol.name: protocol
    for protocol in (anonml.AUDITED, ddml.AUDITED, sdq.AUDITED, pfds.AUDITED)
}
"""Name in the study file -> the audited protocol."""


@dataclass(frozen=True)
class StudyAudit:
    """The result of an audit of a study.

    Parameters
    ----------
    claim
        The loss that the label states for the observation: the plain sum of all releases, or the
        smaller sum of Gaussian ones.
    bound
        The lower bound with the largest ratio to its claim.
    rows
        The two neighbours that were distinguished.
    seen_in
        The part of the output that distinguished them.
    charge
        Largest charge in the ledger of a peer, in grains.
    price
        The correct charge.
    packets
        Most packets of one peer.
    n_phases
        Phases of the study; None for a protocol without phases.
    description
        The inputs of the peers, as text.
    n_tests
        Number of bounds that were computed. The probability of error is divided among them, so the
        confidence is that of all together.
    replay
        The result of replays, which compare all that leaves outside the reports.
    """

    claim: Loss
    bound: EpsilonBound
    rows: tuple[str, str]
    seen_in: str
    charge: int
    price: int
    packets: int
    n_phases: int | None
    description: str
    n_tests: int
    replay: ReplayResult

    @property
    def fault(self) -> str | None:
        """The fault that was found, as text; None without one."""
        if self.bound.epsilon > self.claim.epsilon:
            return "the bound is above the claim: a peer reveals more than the label states"
        if self.replay.leak is not None:
            return f"outside the reports, what leaves depends on the rows: {self.replay.leak}"
        if self.charge > self.price:
            return (
                "the ledger charges more than the claim: a peer spends more than the label states"
            )
        if self.charge < self.price:
            return (
                "the ledger charges less than the claim: a peer spends more than its ledger states"
            )
        return None


def choose_samples(study: Study) -> int:
    """Return the default number of peers or studies to run with each neighbour."""
    return AUDITED[study.protocol].choose_samples(study)


def has_joint_runs(study: Study) -> bool:
    """Return whether a sample is a whole study, with all its peers."""
    return AUDITED[study.protocol].has_joint_runs(study)


def make_audit_plan(study: Study) -> Plan:
    """Return the plan of everything that an audit asks: all releases but free questions."""
    return make_plan(study.model_copy(update={"queries": None}))


def compute_claim(study: Study) -> Loss:
    """Return the loss that the label states, without free questions."""
    return make_audit_plan(study).loss


def audit_study(
    study: Study,
    samples: int,
    confidence: float,
    entropy: Entropy,
    make_peer: Callable[..., Any] | None = None,
) -> StudyAudit:
    """Bound the epsilon of a peer's whole output from below, with the given confidence.

    Parameters
    ----------
    study
        The study. Free questions are not asked, and are not part of the claim.
    samples
        Peers to run with each neighbour; for secure sums whole studies, each with all its peers.
    make_peer
        Replacement for the protocol's peer, to check that an audit finds a broken one.
    """
    check_effort(samples, confidence, choose_samples(study))
    claim, whole = compute_claim(study), compose_sequential(make_audit_plan(study).charges)
    observations = AUDITED[study.protocol].observe(study, claim, whole, samples, entropy, make_peer)
    return evaluate_observations(observations, confidence, grains_up(whole.epsilon))


def evaluate_observations(observations: Observations, confidence: float, price: int) -> StudyAudit:
    """Compare all observations with their claims, and the charge with the price, in grains."""
    alpha = (1 - confidence) / len(observations.observations)
    bounds = [(one.compute_bound(alpha), one) for one in observations.observations]
    reported = [
        (bound, one)
        for bound, one in bounds
        if not one.is_part or bound.epsilon > one.claim.epsilon
    ]
    bound, found = max(reported, key=lambda pair: pair[0].epsilon / pair[1].claim.epsilon)
    return StudyAudit(
        found.claim,
        bound,
        found.rows,
        found.seen_in,
        observations.charge,
        price,
        observations.packets,
        observations.n_phases,
        observations.description,
        len(bounds),
        observations.replay,
    )
