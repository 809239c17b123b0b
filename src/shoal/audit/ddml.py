"""All that one device of DDML sends in a whole study, drawn again and again for rows that a hostile aggregator can best tell apart.

The real peer is driven by the real step of all drivers, with a ledger of its own. The aggregator is an attacker's: it hands out the
instances at which two devices are pushed in opposite directions, as far as the clip lets them or farther, where a peer does not clip.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.audit.looks import Look, Seen, ranked
from shoal.audit.peers import ends
from shoal.domain import Categorical, Numeric, Schema
from shoal.entropy import Entropy
from shoal.mechanisms.laplace import DiscreteLaplace
from shoal.messages.base import Array
from shoal.messages.codec import decode
from shoal.privacy.accountant import Loss
from shoal.protocols.base import AGGREGATOR, START, Account, Input, MemoryLedger, Outbound, Received, Started, settle
from shoal.protocols.ddml.design import Columns, Floats
from shoal.protocols.ddml.judging import read_weights
from shoal.protocols.ddml.merging import Weights, to_grid
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

FIRM = 30.0
"""A score that is as good as certain."""


@dataclass(frozen=True, eq=False)
class Scene:
    """A hostile aggregator and the two devices that it would tell apart, each with one row; under replace they are neighbours.

    Parameters
    ----------
    rows
        The two rows, in words.
    columns, labels
        The two rows, encoded.
    instances
        What is handed out, in turn.
    """

    rows: tuple[str, str]
    columns: dict[str, npt.NDArray[Any]]
    labels: npt.NDArray[Any]
    instances: tuple[Weights, ...]

    def device(self, which: int) -> tuple[dict[str, npt.NDArray[Any]], npt.NDArray[Any]]:
        """Columns and labels of one of the two."""
        return {name: column[which : which + 1] for name, column in self.columns.items()}, self.labels[which : which + 1]


def corners(schema: Schema, low: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    """Two encoded rows: both have the highest value everywhere, but the second the lowest in the columns that are named."""
    columns: dict[str, npt.NDArray[Any]] = {}
    for feature in schema.features:
        least, most = ends(feature)
        columns[feature.name] = np.array(
            [most, least if feature.name in low else most], float if isinstance(feature, Numeric) else np.int64
        )
    for text in schema.texts:
        columns[text.name] = np.empty(2, object)
        columns[text.name][:] = [np.array([0]), np.array([], np.int64) if text.name in low else np.array([0])]
    return columns


def make_scenes(params: Params) -> tuple[Scene, Scene]:
    """Two aggregators: one whose model is undecided, and one whose model is certain, and wrong, about both devices.

    Notes
    -----
    Where the model predicts the middle of the label, the same inputs with the lowest and with the highest label have opposite gradients.
    Where it hangs on one input alone, two rows that differ in that input, both predicted wrongly, have gradients as large as
    gradients can be, and almost opposite ones. From a second update on every other instance is certain of the highest label: there the
    first row has the same gradient again, and the second none, which noise that is used twice does not hide.
    """
    schema, width = params.schema, params.design.width
    assert schema.label is not None
    labels = np.array(ends(schema.label), np.int64 if isinstance(schema.label, Categorical) else np.float64)
    alone = min(schema.columns, key=lambda name: sum(name in cross for cross in params.crosses))
    same, apart = corners(schema, ()), corners(schema, (alone,))
    first, second = params.design.inputs(apart).dense()
    turned = int(np.flatnonzero(first != second)[0])
    # The first row's score is then as far above zero as the second's is below.
    slope = 2 * FIRM / (first[turned] - second[turned])
    middle = {"identity": 0.5, "log": math.log(0.5)}.get(params.link, 0.0)

    def instance(constant: float, on_turned: float) -> Weights:
        weights = np.zeros((params.n_outputs, width))
        weights[-1, [0, turned]] = constant, on_turned
        if params.n_outputs > 1:
            weights[0] = -weights[-1]
        return to_grid(weights.ravel() * 2.0**params.fraction_bits)

    undecided = Scene(("highest values and first label", "highest values and last label"), same, labels, (instance(middle, 0.0),))
    certain = Scene(
        ("highest values and first label", f"highest values but for {alone}, and last label"),
        apart,
        labels,
        (instance(FIRM - slope * first[turned], slope), instance(FIRM, 0.0))[: params.n_updates],
    )
    return undecided, certain


@dataclass(frozen=True, eq=False)
class Outputs:
    """What many peers with the same row have sent, each in its whole study.

    Parameters
    ----------
    steps
        For each peer ``(n, p)``: every update less the instance that it was made from, in order.
    charged
        The largest sum, in grains, that a ledger has counted.
    """

    steps: tuple[Steps, ...]
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

    def draw(self, which: int, n: int, entropy: Entropy) -> Outputs:
        """The outputs of n peers with the one row or with the other."""
        columns, labels = self.scene.device(which)
        steps, charged = [], 0
        for _ in range(n):
            ledger = MemoryLedger()
            steps.append(self.run(self.make_peer(self.study, self.params, columns, labels), ledger, entropy))
            charged = max(charged, sum(entry.cost for entry in ledger.entries.values()))
        return Outputs(tuple(steps), charged)

    def run(self, peer: DDMLPeer, ledger: MemoryLedger, entropy: Entropy) -> Steps:
        """Every step that a peer sends; it is given an instance as often as it draws, and once more than it should."""
        account = Account(ledger, self.study, "the rows", "the aggregator", "an audit")
        state, steps = peer.initial(), []
        given: Input = Started()
        for turn in range(self.params.n_updates + 2):
            inputs: list[Input] = []
            state, work = settle(peer, state, given, START, entropy, account)
            base = self.scene.instances[turn % len(self.scene.instances)]
            for item in work:
                if isinstance(item, Outbound):
                    leaves = item.payload if item.question is None else account.mark_sending(item.question)
                    message = decode(leaves, MESSAGES, self.study)
                    if isinstance(message, Draw):
                        instance = Instance(study=self.study, draw=message.id, epoch=0, weights=Array.of(base))
                        inputs.append(Received(AGGREGATOR, instance))
                    else:
                        assert isinstance(message, Update)
                        before = self.scene.instances[(turn - 1) % len(self.scene.instances)]
                        steps.append(read_weights(message.weights, self.params).astype(np.int64) - before)
            if not inputs:
                break
            (given,) = inputs
        return np.array(steps, np.int64).reshape(-1, self.params.n_weights)


def look(study: Study, claim: Loss, whole: Loss, samples: int, entropy: Entropy, make_peer: MakePeer) -> Seen:
    """Run so many peers with each of the rows of both scenes, and compare all that they send.

    Parameters
    ----------
    study
        The study.
    claim, whole
        What the label states, and what it says that everything costs: not the same where each weight alone is protected.
    samples, entropy, make_peer
        As for the audit.
    """
    params, digest = params_of(study), Manifest(study).digest
    whole = whole if params.unit == "weight" else claim
    looks, charged, packets = [], 0, 0
    for scene in make_scenes(params):
        stage = Stage(digest, params, scene, make_peer)
        drawn = [stage.draw(which, samples, entropy) for which in (0, 1)]
        first, second = (evidence(params, scene, outputs) for outputs in drawn)
        looks.append(Look("what was sent", scene.rows, *ranked(first.sum(axis=1), second.sum(axis=1)), whole))
        if params.unit == "weight":
            looks.append(Look("the constant's weight", scene.rows, *ranked(first[:, 0], second[:, 0]), claim))
        counts = [np.array([len(steps) for steps in outputs.steps]) for outputs in drawn]
        looks.append(Look("how many updates were sent", scene.rows, counts[0], counts[1], whole))
        if len(scene.instances) > 1:
            apart = [np.array([np.abs(steps[:1] - steps[1:2]).sum() for steps in outputs.steps]) for outputs in drawn]
            looks.append(Look("how two updates differ", scene.rows, *ranked(*apart), whole))
        charged = max(charged, *(outputs.charged for outputs in drawn))
        packets = max(packets, *(int(count.max()) for count in counts))
    return Seen(tuple(looks), charged, packets, None, "each of two rows, at each of two models")


def evidence(params: Params, scene: Scene, outputs: Outputs) -> Floats:
    """``(n, p)``: what the steps of each peer say for the second row and against the first, weight by weight.

    Notes
    -----
    For Laplace and Gaussian noise this is, up to a factor and a constant, the logarithm of how much likelier the second row makes the
    step; for a direction it is how much closer to the second row's the step points.
    """
    step = make_step(params)
    is_laplace = isinstance(step, AdditiveStep) and isinstance(step.noise, DiscreteLaplace)
    rows = [Rows.of(params, *scene.device(which)) for which in (0, 1)]
    moves = [[clipped(step, one.gradient(params, instance)) for one in rows] for instance in scene.instances]
    found = np.zeros((len(outputs.steps), params.n_weights))
    for i, steps in enumerate(outputs.steps):
        for turn, seen in enumerate(steps):
            first, second = moves[turn % len(moves)]
            found[i] += np.abs(seen - first) - np.abs(seen - second) if is_laplace else seen * (second - first)
    return found


def clipped(step: Step, gradient: Floats) -> Floats:
    """The step that a gradient asks for, before it is hidden."""
    if isinstance(step, AdditiveStep):
        return step.clipped(gradient).astype(np.float64)
    assert isinstance(step, ClosestStep)
    return -step.scale * gradient * min(1.0, step.clip / max(float(np.linalg.norm(gradient)), step.clip))
