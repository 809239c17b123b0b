"""Audit of DDML: hostile aggregators, and the pairs of updates that each separates.

`shoal.audit.study` calls `AUDITED`. The real peer runs through a whole study with the step
function of all drivers and a separate ledger. The aggregator is hostile: it sends instances at
which the gradients of two devices point in opposite directions, up to the clip, or farther if a
peer does not clip. It chooses the next instance from the last update.

Updates are compared by the noise that they should have; all weights and bytes by
`shoal.audit.distinguishers`; and all that leaves outside the weights by `shoal.audit.replay`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.audit.anonml import find_ends
from shoal.audit.distinguishers import Reports, observe_reports
from shoal.audit.observations import AuditedProtocol, Observation, Observations, rank_samples
from shoal.audit.replay import RunPeer, WrapPeer, count_replays, replay_neighbours
from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import Entropy, SeededEntropy
from shoal.mechanisms.laplace import DiscreteLaplace
from shoal.messages.base import Array
from shoal.messages.codec import decode
from shoal.privacy.accountant import Loss
from shoal.protocols.base import (
    AGGREGATOR,
    START,
    Input,
    MemoryLedger,
    OutgoingMessage,
    Received,
    Started,
    run_input,
)
from shoal.protocols.ddml.design_matrix import Columns, Floats
from shoal.protocols.ddml.merging import Weights, round_to_grid
from shoal.protocols.ddml.messages import MESSAGES, DDMLDraw, DDMLInstance, DDMLUpdate, read_weights
from shoal.protocols.ddml.noisy_step import AdditiveStep, ClosestStep, UpdateStep, make_step
from shoal.protocols.ddml.params import DDMLParams
from shoal.protocols.ddml.peer import DDMLPeer, TrainingRows
from shoal.study.ddml import build_params
from shoal.study.manifest import Manifest
from shoal.study.spec import Study

CERTAIN_SCORE = 30.0
"""A score that is certain in practice."""
_SCORES = {"identity": (0.0, 0.5, 1.0), "log": (-CERTAIN_SCORE, math.log(0.5), 0.0)}
"""Scores of the lowest, the middle and the highest label, for links of numeric labels."""


@dataclass(frozen=True, eq=False)
class Adversary:
    """A hostile aggregator and the two devices to distinguish, neighbours under replace.

    Each device has one row.

    Parameters
    ----------
    rows
        Descriptions of the two rows.
    columns, labels
        The two rows, encoded.
    instances
        The instances to send, in order. Of each pair, the first is sent if the sum of the last
        update's evidence is for the first row, the second if it is for the second row.
    """

    rows: tuple[str, str]
    columns: dict[str, npt.NDArray[Any]]
    labels: npt.NDArray[Any]
    instances: tuple[tuple[Weights, Weights], ...]

    def select_device(self, which: int) -> tuple[dict[str, npt.NDArray[Any]], npt.NDArray[Any]]:
        """Return columns and labels of one of the two devices."""
        return {
            name: column[which : which + 1] for name, column in self.columns.items()
        }, self.labels[which : which + 1]


def make_extreme_rows(schema: Schema, low: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    """Return two encoded rows with the highest value in all columns.

    The second row has the lowest value in the columns ``low``.
    """
    columns: dict[str, npt.NDArray[Any]] = {}
    for feature in schema.features:
        least, most = find_ends(feature)
        columns[feature.name] = np.array(
            [most, least if feature.name in low else most],
            float if isinstance(feature, Numeric) else np.int64,
        )
    for text in schema.texts:
        columns[text.name] = np.empty(2, object)
        columns[text.name][:] = [
            np.array([0]),
            np.array([], np.int64) if text.name in low else np.array([0]),
        ]
    return columns


def make_adversaries(params: DDMLParams) -> tuple[Adversary, Adversary]:
    """Return two aggregators: one with an undecided model, one with a certain and wrong model.

    Notes
    -----
    If the model predicts the middle of the label, the same inputs with the lowest and with the
    highest label have opposite gradients. If the model depends on one input alone, two rows that
    differ in that input, both predicted wrongly, have the largest possible gradients, and almost
    opposite ones. From the second update on, every other instance is certain of a label: one row
    has the gradient of an error, the other has none. So neither noise that is used twice nor a step
    of the gradient's length hides it. The certain aggregator continues with the highest label; the
    undecided one adapts, and copies into the weight of the constant what all weights of the last
    update say.
    """
    schema, width = params.schema, params.design.width
    assert schema.label is not None
    labels = np.array(
        find_ends(schema.label), np.int64 if isinstance(schema.label, Categorical) else np.float64
    )
    alone = min(schema.columns, key=lambda name: sum(name in cross for cross in params.crosses))
    same, apart = make_extreme_rows(schema, ()), make_extreme_rows(schema, (alone,))
    first, second = params.design.make_inputs(apart).to_dense()
    turned = int(np.flatnonzero(first != second)[0])
    # The first row's score is then as far above zero as the second's is below.
    slope = 2 * CERTAIN_SCORE / (first[turned] - second[turned])
    lowest, middle, highest = _SCORES.get(params.link, (-CERTAIN_SCORE, 0.0, CERTAIN_SCORE))

    def instance(constant: float, on_turned: float) -> Weights:
        weights = np.zeros((params.n_outputs, width))
        weights[-1, [0, turned]] = constant, on_turned
        if params.n_outputs > 1:
            weights[0] = -weights[-1]
        return round_to_grid(weights.ravel() * 2.0**params.fraction_bits)

    def twice(weights: Weights) -> tuple[Weights, Weights]:
        return weights, weights

    undecided = Adversary(
        ("highest values and first label", "highest values and last label"),
        same,
        labels,
        (twice(instance(middle, 0.0)), (instance(lowest, 0.0), instance(highest, 0.0)))[
            : params.n_updates
        ],
    )
    certain = Adversary(
        ("highest values and first label", f"highest values but for {alone}, and last label"),
        apart,
        labels,
        (
            twice(instance(CERTAIN_SCORE - slope * first[turned], slope)),
            twice(instance(highest, 0.0)),
        )[: params.n_updates],
    )
    return undecided, certain


MakePeer = Callable[[bytes, DDMLParams, Columns, npt.NDArray[Any]], DDMLPeer]
"""Constructor of a peer: the class, or a changed one that an audit must detect.

Its arguments are digest, parameters, columns and labels.
"""

Steps = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class DDMLOutputs:
    """Outputs of many peers with the same row, each in its whole study.

    Parameters
    ----------
    steps
        For each peer ``(n, p)``: each update minus the instance that it was made from, in order.
    evidence
        For each peer ``(n, p)``: the evidence of each step for the second row and against the
        first, weight by weight.
    payloads
        The bytes of all messages of each peer.
    charge
        Largest sum charged by a ledger, in grains.
    """

    steps: tuple[Steps, ...]
    evidence: tuple[Floats, ...]
    payloads: tuple[bytes, ...]
    charge: int


class DDMLAuditHarness:
    """A study with a hostile aggregator, in which peers are run.

    Parameters
    ----------
    study
        Digest of the manifest.
    adversary
        The aggregator and its two devices.
    """

    def __init__(
        self, study: bytes, params: DDMLParams, adversary: Adversary, make_peer: MakePeer = DDMLPeer
    ) -> None:
        self.study = study
        self.params = params
        self.adversary = adversary
        self.make_peer = make_peer
        self._step = make_step(params)
        rows = [
            TrainingRows.from_columns(params, *adversary.select_device(which)) for which in (0, 1)
        ]
        self._steps = [
            [
                [clip_gradient(self._step, row.gradient(params, base)) for row in rows]
                for base in pair
            ]
            for pair in adversary.instances
        ]

    def draw(self, which: int, n: int, entropy: Entropy) -> DDMLOutputs:
        """Return the outputs of n peers with one of the two rows."""
        steps, evidence, payloads, charge = [], [], [], 0
        for _ in range(n):
            ledger = MemoryLedger()
            peer_steps, peer_evidence, payload = self.run_peer(
                self._make_peer(which), ledger, entropy
            )
            steps.append(peer_steps)
            evidence.append(peer_evidence)
            payloads.append(payload)
            charge = max(charge, sum(entry.cost for entry in ledger.entries.values()))
        return DDMLOutputs(tuple(steps), tuple(evidence), tuple(payloads), charge)

    def _make_peer(self, which: int) -> DDMLPeer:
        return self.make_peer(self.study, self.params, *self.adversary.select_device(which))

    def make_run(self) -> RunPeer:
        """Return the run of a peer with one of the two rows, for replays."""

        def run(which: int, entropy: SeededEntropy, wrap: WrapPeer) -> None:
            self.run_peer(wrap(self._make_peer(which)), MemoryLedger(), entropy)

        return run

    def run_peer(
        self, peer: Any, ledger: MemoryLedger, entropy: Entropy
    ) -> tuple[Steps, Floats, bytes]:
        """Return all steps that a peer sends, their evidence, and the bytes of all messages.

        The peer receives an instance for each of its draws, and one more than it should.
        """
        account = ledger.account(self.study, "the rows", "the aggregator", "an audit")
        state, steps, evidence, payloads = peer.initial_state(), [], [], []
        given: Input = Started()
        at, supported_row = (0, 0), 0
        for turn in range(self.params.n_updates + 2):
            inputs: list[Input] = []
            state, work = run_input(peer, state, given, START, entropy, account)
            for item in work:
                if isinstance(item, OutgoingMessage):
                    payload = (
                        item.payload
                        if item.question is None
                        else account.mark_sending(item.question)
                    )
                    payloads.append(payload)
                    message = decode(payload, MESSAGES, self.study)
                    if isinstance(message, DDMLDraw):
                        at = turn % len(self.adversary.instances), supported_row
                        instance = DDMLInstance(
                            study=self.study,
                            draw=message.id,
                            epoch=0,
                            weights=Array.from_values(self._find_instance(at)),
                        )
                        inputs.append(Received(AGGREGATOR, instance))
                    else:
                        assert isinstance(message, DDMLUpdate)
                        steps.append(
                            read_weights(message.weights, self.params).astype(np.int64)
                            - self._find_instance(at)
                        )
                        evidence.append(self.compute_evidence(steps[-1], at))
                        supported_row = int(evidence[-1].sum() > 0)
            if not inputs:
                break
            (given,) = inputs
        shape = (-1, self.params.n_weights)
        return (
            np.array(steps, np.int64).reshape(shape),
            np.array(evidence, np.float64).reshape(shape),
            b"".join(payloads),
        )

    def compute_evidence(self, step: Steps, at: tuple[int, int]) -> Floats:
        """Return the evidence of a step for the second row and against the first, ``(p,)``.

        Notes
        -----
        For Laplace and Gaussian noise it is the log-likelihood ratio of the rows, up to a factor
        and a constant. For a direction it is how much closer the step points to the second row's
        direction.
        """
        first, second = self._steps[at[0]][at[1]]
        if isinstance(self._step, AdditiveStep) and isinstance(self._step.noise, DiscreteLaplace):
            return np.abs(step - first) - np.abs(step - second)
        return step * (second - first)

    def _find_instance(self, at: tuple[int, int]) -> Weights:
        return self.adversary.instances[at[0]][at[1]]


def observe_study(
    study: Study, claim: Loss, whole: Loss, samples: int, entropy: Entropy, make_peer: MakePeer
) -> Observations:
    """Run a number of peers with each row of both adversaries, and compare their outputs.

    Parameters
    ----------
    claim
        The loss that the label states.
    whole
        The loss of everything that a peer sends. It differs from the claim if each weight of an
        update is protected separately.
    """
    params, digest = build_params(study), Manifest(study).digest
    whole = whole if params.unit == "weight" else claim
    observations, runs, charge, packets = [], {}, 0, 0
    for adversary in make_adversaries(params):
        harness = DDMLAuditHarness(digest, params, adversary, make_peer)
        drawn = [harness.draw(which, samples, entropy) for which in (0, 1)]
        numbers = {
            "all updates": (
                [[evidence.sum() for evidence in outputs.evidence] for outputs in drawn],
                whole,
            )
        }
        for turn in range(min(2, params.n_updates) if params.unit == "weight" else 0):
            weight = [
                [evidence[turn : turn + 1, 0].sum() for evidence in outputs.evidence]
                for outputs in drawn
            ]
            numbers[f"the constant's weight in update {turn + 1}"] = weight, claim
        # Of two steps the second one: there one of the rows has no gradient.
        numbers["the length of a step"] = (
            [[_compute_length(steps[:2][-1:]) for steps in outputs.steps] for outputs in drawn],
            whole,
        )
        if params.n_updates > 1:
            numbers["the difference of two updates"] = (
                [
                    [_compute_length(steps[:1] - steps[1:2]) for steps in outputs.steps]
                    for outputs in drawn
                ],
                whole,
            )
        observations += [
            Observation(seen_in, adversary.rows, *rank_samples(*map(np.array, both)), due)
            for seen_in, (both, due) in numbers.items()
        ]
        counts = [np.array([len(steps) for steps in outputs.steps]) for outputs in drawn]
        observations.append(
            Observation("the number of updates", adversary.rows, counts[0], counts[1], whole)
        )
        reports = Reports.from_rows(
            [[steps.ravel() for steps in outputs.steps] for outputs in drawn],
            [outputs.payloads for outputs in drawn],
        )
        observations += observe_reports(adversary.rows, reports, whole)
        runs[adversary.rows] = harness.make_run()
        charge = max(charge, *(outputs.charge for outputs in drawn))
        packets = max(packets, *(int(count.max()) for count in counts))
    return Observations(
        tuple(observations),
        charge,
        packets,
        None,
        "each of two rows, at each of two models",
        replay_neighbours(runs, count_replays(samples), entropy),
    )


def _compute_length(steps: Steps) -> float:
    return float(np.linalg.norm(steps))


def clip_gradient(step: UpdateStep, gradient: Floats) -> Floats:
    """Return the step of a gradient before noise is added."""
    if isinstance(step, AdditiveStep):
        return step.clip_gradient(gradient).astype(np.float64)
    assert isinstance(step, ClosestStep)
    return (
        -step.scale
        * gradient
        * min(1.0, step.clip / max(float(np.linalg.norm(gradient)), step.clip))
    )


SAMPLES = 4000
"""Peers with each of the rows: half a minute for one update."""


def _observe(
    study: Study,
    claim: Loss,
    whole: Loss,
    samples: int,
    entropy: Entropy,
    make_peer: MakePeer | None,
) -> Observations:
    return observe_study(study, claim, whole, samples, entropy, make_peer or DDMLPeer)


AUDITED = AuditedProtocol("ddml", _observe, lambda _: SAMPLES, lambda _: False)
