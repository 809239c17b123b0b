"""A whole study held against its label: a lower bound on the epsilon of all that a peer sends, from the peer itself."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from shoal.audit.bound import EpsilonBound, Keys, bound_epsilon, check_effort
from shoal.audit.peers import ROWS, MakePeer, Outputs, Stage
from shoal.entropy import Entropy
from shoal.errors import UsageError
from shoal.privacy.accountant import Loss
from shoal.privacy.rounding import grains_up
from shoal.protocols.anonml.peer import AnonMLPeer
from shoal.protocols.anonml.population import make_script
from shoal.study.anonml import params_of
from shoal.study.manifest import Manifest
from shoal.study.plan import make_plan
from shoal.study.spec import Study

SAMPLES = 4000
"""Peers with each of the rows: some seconds for a study of one phase, half a minute for one of sixteen."""


@dataclass(frozen=True)
class StudyAudit:
    """What an audit of a study has found.

    Parameters
    ----------
    claim
        What the label states: the plain sum of all releases.
    bound
        The largest lower bound that was found.
    rows
        The two rows that were told apart.
    seen_in
        What told them apart: what was answered, or which questions were.
    charged
        What the ledger of a peer has counted at most, in grains.
    packets
        Most packets of one peer.
    n_phases
        Phases of the study.
    """

    claim: Loss
    bound: EpsilonBound
    rows: tuple[str, str]
    seen_in: str
    charged: int
    packets: int
    n_phases: int

    @property
    def fault(self) -> str | None:
        """What is wrong, in a sentence; None where nothing was found."""
        if self.bound.epsilon > self.claim.epsilon:
            return "the bound is above the claim, so a peer reveals more than the label says"
        if self.charged > grains_up(self.claim.epsilon):
            return "the ledger counts more than the claim, so a peer spends more than the label says"
        if self.charged < grains_up(self.claim.epsilon):
            return "the ledger counts less than the claim, so a peer spends more than its ledger says"
        return None


def claim_of(study: Study) -> Loss:
    """What the label states for all that is asked here: everything but free questions."""
    return make_plan(study.model_copy(update={"queries": None})).loss


def audit_study(study: Study, samples: int, confidence: float, entropy: Entropy, make_peer: MakePeer = AnonMLPeer) -> StudyAudit:
    """A lower bound on the epsilon of a peer's whole output, which holds with the given confidence.

    Parameters
    ----------
    study
        A study of AnonML. Free questions are not asked, and are not part of the claim.
    samples
        Peers to run with each of the rows.
    confidence
        How sure the bound must be.
    entropy
        What tickets and noise are drawn from.
    make_peer
        What makes a peer; another one than the protocol's own is for those who doubt that an audit finds anything.

    Notes
    -----
    Three rows make three pairs, and each is looked at in two ways; the chance of error is shared among the six. Any set of outputs
    refutes a claim, so it matters for the strength of the bound alone what of an output is looked at.
    """
    check_effort(samples, confidence, SAMPLES)
    if study.protocol != "anonml":
        raise UsageError(
            "AUDIT-001",
            f"A study of {study.protocol} cannot be audited as a whole yet.",
            why="Only AnonML's peers are run from beginning to end so far.",
            fix="Audit its mechanisms: shoal check names them, and shoal audit mechanism NAME measures them.",
        )
    claim = claim_of(study)
    digest = Manifest(study).digest
    stage = Stage(digest, make_script(params_of(study), digest), make_peer)
    drawn = [stage.draw(row, samples, entropy) for row in range(len(ROWS))]
    pairs = list(combinations(range(len(ROWS)), 2))
    alpha = (1 - confidence) / (2 * len(pairs))
    asked = _numbered(drawn)
    found = []
    for i, j in pairs:
        said = [outputs.support[:, i] - outputs.support[:, j] for outputs in (drawn[i], drawn[j])]
        for seen_in, (first, second) in (("what was answered", said), ("which questions were answered", (asked[i], asked[j]))):
            found.append((bound_epsilon(first, second, alpha, claim.delta), (ROWS[i], ROWS[j]), seen_in))
    bound, rows, seen_in = max(found, key=lambda one: one[0].epsilon)
    charged = max(outputs.charged for outputs in drawn)
    packets = max(len(place) for outputs in drawn for place in outputs.places)
    return StudyAudit(claim, bound, rows, seen_in, charged, packets, stage.script.n_phases)


def _numbered(drawn: list[Outputs]) -> list[Keys]:
    """The places of all outputs as integers."""
    number = {place: i for i, place in enumerate(sorted({place for outputs in drawn for place in outputs.places}))}
    return [np.array([number[place] for place in outputs.places], np.int64) for outputs in drawn]
