"""A whole study held against its label: a lower bound on the epsilon of all that a peer sends, from the peer itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shoal.audit import ddml, peers, pfds, sdq
from shoal.audit.bound import EpsilonBound, check_effort
from shoal.audit.looks import Seen
from shoal.entropy import Entropy
from shoal.privacy.accountant import Loss, sequential
from shoal.privacy.rounding import grains_up
from shoal.protocols.anonml.peer import AnonMLPeer
from shoal.protocols.ddml.peer import DDMLPeer
from shoal.protocols.sdq.peer import SDQPeer
from shoal.study.plan import Plan, make_plan
from shoal.study.spec import Study

SAMPLES = 4000
"""Peers with each of the rows: some seconds for AnonML in one phase, half a minute in sixteen phases, or for one update of DDML."""
SAMPLES_OF_SUMS = 200_000
"""Studies of SDQ, or holders of PFDS, with each of the tables: half a minute, as most of them are drawn at once."""
SAMPLES_OF_SHARES = 100_000
"""Studies of PFDS with secure sums, with each of the tables: a minute where noise is drawn in the shares of fifty holders."""


@dataclass(frozen=True)
class StudyAudit:
    """What an audit of a study has found.

    Parameters
    ----------
    claim
        What the label states about what was looked at: the plain sum of all releases, or the smaller sum of Gaussian ones.
    bound
        The lower bound that comes nearest to its claim, or is farthest above it.
    rows
        The two rows that were told apart.
    seen_in
        What told them apart: what was answered, or which questions were.
    charged
        What the ledger of a peer has counted at most, in grains.
    price
        What it should have counted.
    packets
        Most packets of one peer.
    n_phases
        Phases of the study; None where it has none.
    tried
        In words, what peers were run with.
    """

    claim: Loss
    bound: EpsilonBound
    rows: tuple[str, str]
    seen_in: str
    charged: int
    price: int
    packets: int
    n_phases: int | None
    tried: str

    @property
    def fault(self) -> str | None:
        """What is wrong, in a sentence; None where nothing was found."""
        if self.bound.epsilon > self.claim.epsilon:
            return "the bound is above the claim, so a peer reveals more than the label says"
        if self.charged > self.price:
            return "the ledger counts more than the claim, so a peer spends more than the label says"
        if self.charged < self.price:
            return "the ledger counts less than the claim, so a peer spends more than its ledger says"
        return None


def usual_samples(study: Study) -> int:
    """How many peers or studies to run with each of the rows, where nobody says it."""
    if study.protocol == "pfds" and study.trust == "secure-sum":
        return SAMPLES_OF_SHARES
    return SAMPLES_OF_SUMS if study.protocol in ("sdq", "pfds") else SAMPLES


def plan_of(study: Study) -> Plan:
    """The plan of all that is asked here: everything but free questions."""
    return make_plan(study.model_copy(update={"queries": None}))


def claim_of(study: Study) -> Loss:
    """What the label states for it."""
    return plan_of(study).loss


def audit_study(study: Study, samples: int, confidence: float, entropy: Entropy, make_peer: Callable[..., Any] | None = None) -> StudyAudit:
    """A lower bound on the epsilon of a peer's whole output, which holds with the given confidence.

    Parameters
    ----------
    study
        The study. Free questions are not asked, and are not part of the claim.
    samples
        Peers to run with each of the rows; where there are secure sums, studies, each with all its peers.
    confidence
        How sure the bound must be.
    entropy
        What tickets and noise are drawn from.
    make_peer
        What makes a peer; another one than the protocol's own is for those who doubt that an audit finds anything.

    Notes
    -----
    The chance of error is shared among all that is looked at.
    """
    check_effort(samples, confidence, usual_samples(study))
    claim, whole = claim_of(study), sequential(plan_of(study).charges)
    if study.protocol == "anonml":
        seen = peers.look(study, claim, samples, entropy, make_peer or AnonMLPeer)
    elif study.protocol == "ddml":
        seen = ddml.look(study, claim, whole, samples, entropy, make_peer or DDMLPeer)
    elif study.protocol == "sdq":
        seen = sdq.look(study, claim, whole, samples, entropy, make_peer or SDQPeer)
    else:
        seen = pfds.look(study, claim, whole, samples, entropy, make_peer)
    return judge(seen, confidence, grains_up(whole.epsilon))


def judge(seen: Seen, confidence: float, price: int) -> StudyAudit:
    """Hold all that was seen against the claims about it, and what was charged against the price, in grains."""
    alpha = (1 - confidence) / len(seen.looks)
    bounds = [(one.bound(alpha), one) for one in seen.looks]
    told = [(bound, one) for bound, one in bounds if not one.is_part or bound.epsilon > one.claim.epsilon]
    bound, found = max(told, key=lambda pair: pair[0].epsilon / pair[1].claim.epsilon)
    return StudyAudit(found.claim, bound, found.rows, found.seen_in, seen.charged, price, seen.packets, seen.n_phases, seen.tried)
