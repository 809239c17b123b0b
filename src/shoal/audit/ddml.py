"""All that one device of DDML sends in a whole study, drawn again and again for rows that a hostile aggregator can best tell apart.

The real peer is driven by the real step of all drivers, with a ledger of its own. The aggregator is an attacker's, see `scenes`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.audit.looks import Look, Seen, ranked
from shoal.audit.scenes import Scene, make_scenes
from shoal.entropy import Entropy
from shoal.mechanisms.laplace import DiscreteLaplace
from shoal.messages.base import Array
from shoal.messages.codec import decode
from shoal.privacy.accountant import Loss
from shoal.protocols.base import AGGREGATOR, START, Account, Input, MemoryLedger, Outbound, Received, Started, settle
from shoal.protocols.ddml.design import Columns, Floats
from shoal.protocols.ddml.judging import read_weights
from shoal.protocols.ddml.merging import Weights
from shoal.protocols.ddml.messages import MESSAGES, Draw, Instance, Update
from shoal.protocols.ddml.params import Params
from shoal.protocols.ddml.peer import DDMLPeer
from shoal.protocols.ddml.rows import Rows
from shoal.protocols.ddml.step import AdditiveStep, ClosestStep, Step, make_step
from shoal.study.ddml import params_of
from shoal.study.manifest import Manifest
from shoal.study.spec import Study

MakePeer = Callable[[bytes, Params, Columns, npt.NDArray[Any]], DDMLPeer]
"""What makes a peer of digest, parameters, columns and labels: the class itself, or one that a doubter has altered."""

Steps = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Outputs:
    """What many peers with the same row have sent, each in its whole study.

    Parameters
    ----------
    steps
        For each peer ``(n, p)``: every update less the instance that it was made from, in order.
    evidence
        For each peer ``(n, p)``: what every step says for the second row and against the first, weight by weight.
    charged
        The largest sum, in grains, that a ledger has counted.
    """

    steps: tuple[Steps, ...]
    evidence: tuple[Floats, ...]
    charged: int


class Stage:
    """A study with a hostile aggregator, on which peers can be put.

    Parameters
    ----------
    study
        Digest of the manifest.
    params
        The public figures of the study.
    scene
        The aggregator and its two devices.
    make_peer
        What makes a peer.
    """

    def __init__(self, study: bytes, params: Params, scene: Scene, make_peer: MakePeer = DDMLPeer) -> None:
        self.study = study
        self.params = params
        self.scene = scene
        self.make_peer = make_peer
        self._step = make_step(params)
        rows = [Rows.of(params, *scene.device(which)) for which in (0, 1)]
        self._moves = [[[clipped(self._step, row.gradient(params, base)) for row in rows] for base in pair] for pair in scene.instances]

    def draw(self, which: int, n: int, entropy: Entropy) -> Outputs:
        """The outputs of n peers with the one row or with the other."""
        columns, labels = self.scene.device(which)
        steps, evidence, charged = [], [], 0
        for _ in range(n):
            ledger = MemoryLedger()
            seen, says = self.run(self.make_peer(self.study, self.params, columns, labels), ledger, entropy)
            steps.append(seen)
            evidence.append(says)
            charged = max(charged, sum(entry.cost for entry in ledger.entries.values()))
        return Outputs(tuple(steps), tuple(evidence), charged)

    def run(self, peer: DDMLPeer, ledger: MemoryLedger, entropy: Entropy) -> tuple[Steps, Floats]:
        """Every step that a peer sends, and what it says; it is given an instance as often as it draws, and once more than it should."""
        account = Account(ledger, self.study, "the rows", "the aggregator", "an audit")
        state, steps, evidence = peer.initial(), [], []
        given: Input = Started()
        at, told = (0, 0), 0
        for turn in range(self.params.n_updates + 2):
            inputs: list[Input] = []
            state, work = settle(peer, state, given, START, entropy, account)
            for item in work:
                if isinstance(item, Outbound):
                    leaves = item.payload if item.question is None else account.mark_sending(item.question)
                    message = decode(leaves, MESSAGES, self.study)
                    if isinstance(message, Draw):
                        at = turn % len(self.scene.instances), told
                        instance = Instance(study=self.study, draw=message.id, epoch=0, weights=Array.of(self._handed(at)))
                        inputs.append(Received(AGGREGATOR, instance))
                    else:
                        assert isinstance(message, Update)
                        steps.append(read_weights(message.weights, self.params).astype(np.int64) - self._handed(at))
                        evidence.append(self.says(steps[-1], at))
                        told = int(evidence[-1].sum() > 0)
            if not inputs:
                break
            (given,) = inputs
        shape = (-1, self.params.n_weights)
        return np.array(steps, np.int64).reshape(shape), np.array(evidence, np.float64).reshape(shape)

    def says(self, step: Steps, at: tuple[int, int]) -> Floats:
        """``(p,)``: what a step from one of the scene's instances says for the second row and against the first, weight by weight.

        Notes
        -----
        For Laplace and Gaussian noise this is, up to a factor and a constant, the logarithm of how much likelier the second row makes the
        step; for a direction it is how much closer to the second row's the step points.
        """
        first, second = self._moves[at[0]][at[1]]
        if isinstance(self._step, AdditiveStep) and isinstance(self._step.noise, DiscreteLaplace):
            return np.abs(step - first) - np.abs(step - second)
        return step * (second - first)

    def _handed(self, at: tuple[int, int]) -> Weights:
        return self.scene.instances[at[0]][at[1]]


def look(study: Study, claim: Loss, whole: Loss, samples: int, entropy: Entropy, make_peer: MakePeer) -> Seen:
    """Run so many peers with each of the rows of both scenes, and compare all that they send.

    Parameters
    ----------
    study
        The study.
    claim, whole
        What the label states, and what it says that everything costs: not the same where each weight of an update is protected by itself.
    samples, entropy, make_peer
        As for the audit.
    """
    params, digest = params_of(study), Manifest(study).digest
    whole = whole if params.unit == "weight" else claim
    looks, charged, packets = [], 0, 0
    for scene in make_scenes(params):
        stage = Stage(digest, params, scene, make_peer)
        drawn = [stage.draw(which, samples, entropy) for which in (0, 1)]
        told = {"what was sent": ([[says.sum() for says in outputs.evidence] for outputs in drawn], whole)}
        for turn in range(min(2, params.n_updates) if params.unit == "weight" else 0):
            weight = [[says[turn : turn + 1, 0].sum() for says in outputs.evidence] for outputs in drawn]
            told[f"the constant's weight in update {turn + 1}"] = weight, claim
        # Of two steps the second, where one of the rows has no gradient.
        told["how long a step was"] = [[_length(steps[:2][-1:]) for steps in outputs.steps] for outputs in drawn], whole
        if params.n_updates > 1:
            told["how two updates differ"] = [[_length(steps[:1] - steps[1:2]) for steps in outputs.steps] for outputs in drawn], whole
        looks += [Look(seen_in, scene.rows, *ranked(*map(np.array, both)), due) for seen_in, (both, due) in told.items()]
        counts = [np.array([len(steps) for steps in outputs.steps]) for outputs in drawn]
        looks.append(Look("how many updates were sent", scene.rows, counts[0], counts[1], whole))
        charged = max(charged, *(outputs.charged for outputs in drawn))
        packets = max(packets, *(int(count.max()) for count in counts))
    return Seen(tuple(looks), charged, packets, None, "each of two rows, at each of two models")


def _length(steps: Steps) -> float:
    return float(np.linalg.norm(steps))


def clipped(step: Step, gradient: Floats) -> Floats:
    """The step that a gradient asks for, before it is hidden."""
    if isinstance(step, AdditiveStep):
        return step.clipped(gradient).astype(np.float64)
    assert isinstance(step, ClosestStep)
    return -step.scale * gradient * min(1.0, step.clip / max(float(np.linalg.norm(gradient)), step.clip))
