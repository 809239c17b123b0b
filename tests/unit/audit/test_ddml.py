"""A device's whole output: instances that push two rows apart, steps read from what left, and peers that cheat."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from shoal.audit.ddml import Stage, clipped, look
from shoal.audit.scenes import make_scenes
from shoal.audit.studies import claim_of, judge, plan_of
from shoal.privacy.accountant import sequential
from shoal.privacy.rounding import grains_up
from shoal.protocols.base import MemoryLedger, Send
from shoal.protocols.ddml.peer import DDMLPeer
from shoal.protocols.ddml.rows import Rows
from shoal.protocols.ddml.step import AdditiveStep, ClosestStep, make_step
from shoal.study.ddml import params_of
from unit.audit.ddml_studies import STUDIES, Cheap, Eager, Proud, Repetitive, Shy, TenthNoise, Unclipped, make_study

DIGEST = bytes(range(32))
NAMES = list(STUDIES)


def audit(study, samples, entropy, peer=DDMLPeer, confidence=0.9):
    """The audit of a study with fewer peers than a user may ask for."""
    whole = sequential(plan_of(study).charges)
    return judge(look(study, claim_of(study), whole, samples, entropy, peer), confidence, grains_up(whole.epsilon))


def gradients(params, scene, instance):
    return [Rows.of(params, *scene.device(which)).gradient(params, instance) for which in (0, 1)]


@pytest.mark.parametrize("name", NAMES)
def test_every_peer_sends_all_its_updates_and_its_ledger_counts_them(name, entropy):
    study = STUDIES[name]
    params = params_of(study)
    for scene in make_scenes(params):
        outputs = Stage(DIGEST, params, scene).draw(0, 3, entropy)
        assert {steps.shape for steps in outputs.steps} == {(params.n_updates, params.n_weights)}
        assert outputs.charged == grains_up(sequential(plan_of(study).charges).epsilon)


def test_all_kinds_of_noise_are_looked_at():
    kinds = {name: make_step(params_of(study)) for name, study in STUDIES.items()}
    assert isinstance(kinds["plus"], ClosestStep) and isinstance(kinds["paper"], AdditiveStep)
    assert {step.event.mechanism for step in kinds.values()} == {"k-closest", "discrete-laplace", "discrete-gaussian"}


@pytest.mark.untraced
@pytest.mark.parametrize("name", ["plus", "paper", "weight", "delta", "classes"])
def test_at_a_large_epsilon_the_steps_are_those_of_the_row(name, entropy):
    """And so the evidence tells the rows apart."""
    study = STUDIES[name]
    params = params_of(study.model_copy(update={"privacy": study.privacy.model_copy(update={"epsilon": 30.0})}))
    for scene in make_scenes(params):
        drawn = [Stage(DIGEST, params, scene).draw(which, 5, entropy) for which in (0, 1)]
        first, second = ([says.sum() for says in outputs.evidence] for outputs in drawn)
        assert max(first) < min(second)


def test_evidence_is_the_log_ratio_of_laplace_noise():
    """Up to the noise's scale: half a step nearer to the second row says nothing, a whole one everything."""
    params = params_of(STUDIES["paper"])
    [scene, _] = make_scenes(params)
    stage = Stage(DIGEST, params, scene)
    first, second = (clipped(make_step(params), gradient) for gradient in gradients(params, scene, scene.instances[0][0]))
    middle, whole = (first + second) // 2, np.abs(second - first)
    found = [stage.says(step.astype(np.int64), (0, 0)) for step in (first, middle, second, 3 * second)]
    assert found[0].tolist() == (-whole).tolist() and found[2].tolist() == found[3].tolist() == whole.tolist()
    assert np.abs(found[1]).max() <= 2


class Listening(DDMLPeer):
    """Remembers what it was handed."""

    heard: ClassVar[list[bytes]] = []

    def received(self, state, message, now, entropy):
        self.heard.append(message.weights.data)
        return super().received(state, message, now, entropy)


@pytest.mark.parametrize("which", [0, 1])
def test_the_second_instance_depends_on_the_first_update(which, entropy):
    """At a large epsilon the first update tells which row it is, and the constant's weight of the next instance repeats it."""
    params = params_of(make_study(60.0, n_updates=2, variant="paper"))
    undecided, _ = make_scenes(params)
    Listening.heard.clear()
    outputs = Stage(DIGEST, params, undecided, Listening).draw(which, 4, entropy)
    handed = [undecided.instances[0][0].tobytes(), undecided.instances[1][which].tobytes()]
    assert Listening.heard == handed * 4
    for steps, evidence in zip(outputs.steps, outputs.evidence, strict=True):
        assert steps.shape == evidence.shape == (2, 3)
        first, second = (clipped(make_step(params), gradient) for gradient in gradients(params, undecided, undecided.instances[1][which]))
        assert evidence[1].tolist() == (np.abs(steps[1] - first) - np.abs(steps[1] - second)).tolist()


def test_every_step_is_read_against_the_instance_that_was_handed_out(entropy):
    """The steps of an honest peer have the size of its noise, wherever the instances lie."""
    params = params_of(make_study(60.0, n_updates=3, variant="paper"))
    for scene in make_scenes(params):
        for steps in Stage(DIGEST, params, scene).draw(1, 5, entropy).steps:
            assert np.abs(steps).max() < make_step(params).bound + 30 * make_step(params).deviation


@pytest.mark.parametrize("name", ["plus", "paper"])
def test_a_step_before_noise_is_never_longer_than_the_clip(name):
    params = params_of(STUDIES[name])
    step = make_step(params)
    short, long = np.full(params.n_weights, 1e-3), np.full(params.n_weights, 1e3)
    assert clipped(step, short) == pytest.approx(-step.scale * short, abs=1)
    norm = 2 if name == "plus" else 1
    bound = step.scale * step.clip if name == "plus" else step.bound
    assert np.linalg.norm(clipped(step, long), norm) == pytest.approx(bound, rel=1e-4)


@pytest.mark.untraced
@pytest.mark.parametrize("name", ["plus", "weight", "three updates"])
def test_an_honest_study_is_consistent(name, entropy):
    found = audit(STUDIES[name], 50, entropy)
    assert found.fault is None and found.bound.epsilon <= found.claim.epsilon
    assert (found.packets, found.n_phases) == (3 if name == "three updates" else 1, None)


def test_each_weight_alone_and_everything_have_claims_of_their_own(entropy):
    study = STUDIES["weight"]
    seen = look(study, claim_of(study), sequential(plan_of(study).charges), 4, entropy, DDMLPeer)
    claims = {one.seen_in: (str(one.claim.scope.unit), one.claim.epsilon) for one in seen.looks}
    p = params_of(study).n_weights
    assert claims == {
        "what was sent": ("update", p),
        "the constant's weight in update 1": ("weight", 1),
        "how long a step was": ("update", p),
        "how many updates were sent": ("update", p),
    }


def test_a_weight_is_claimed_for_one_update_and_not_for_all(entropy):
    study = make_study(3.0, unit="weight", n_updates=3)
    seen = look(study, claim_of(study), sequential(plan_of(study).charges), 4, entropy, DDMLPeer)
    claims = {one.seen_in: (str(one.claim.scope.unit), one.claim.epsilon) for one in seen.looks}
    whole = ("update", 3 * params_of(study).n_weights)
    assert claims == {
        "what was sent": whole,
        "the constant's weight in update 1": ("weight", 1),
        "the constant's weight in update 2": ("weight", 1),
        "how long a step was": whole,
        "how two updates differ": whole,
        "how many updates were sent": whole,
    }


@pytest.mark.untraced
@pytest.mark.parametrize(
    ("study", "peer", "samples", "seen_in"),
    [
        (make_study(1.0), TenthNoise, 80, "what was sent"),
        (make_study(1.0, unit="weight"), TenthNoise, 80, "the constant's weight in update 1"),
        (make_study(1.0, variant="paper", ddml={"clip": 0.1}), Unclipped, 100, "what was sent"),
        (make_study(1.0, unit="weight"), Unclipped, 60, "the constant's weight in update 1"),
        (make_study(1.0, n_updates=2), Repetitive, 150, "how two updates differ"),
        (make_study(1.0, n_updates=3, variant="paper"), Repetitive, 60, "how two updates differ"),
        (make_study(1.0, n_updates=2), Proud, 60, "how long a step was"),
        (make_study(1.0, n_updates=2), Shy, 60, "how many updates were sent"),
    ],
)
def test_a_peer_that_reveals_more_is_caught(study, peer, samples, seen_in, entropy):
    found = audit(study, samples, entropy, peer)
    assert found.fault == "the bound is above the claim, so a peer reveals more than the label says"
    assert found.seen_in == seen_in


def test_a_peer_that_goes_on_is_found_in_its_ledger(entropy):
    found = audit(make_study(1.0), 20, entropy, Eager)
    assert found.packets == 2
    assert found.fault == "the ledger counts more than the claim, so a peer spends more than the label says"


def test_a_ledger_that_counts_too_little_is_found(entropy):
    found = audit(make_study(1.0), 20, entropy, Cheap)
    assert found.fault == "the ledger counts less than the claim, so a peer spends more than its ledger says"


def test_what_leaves_is_the_bytes_of_the_ledger(entropy):
    params = params_of(STUDIES["three updates"])
    _, scene = make_scenes(params)
    ledger = MemoryLedger()
    steps, _ = Stage(DIGEST, params, scene).run(DDMLPeer(DIGEST, params, *scene.device(0)), ledger, entropy)
    (total,) = ledger.totals()
    assert (total.held, total.releases) == (0, 3) and len(steps) == 3


def test_only_draws_and_updates_leave_a_peer(entropy):
    """A message that has no price is not passed over: it would be a hole in the audit."""

    class Chatty(DDMLPeer):
        def received(self, state, message, now, entropy):
            return state, (Send("aggregator", message),)

    params = params_of(STUDIES["plus"])
    with pytest.raises(AssertionError):
        Stage(DIGEST, params, make_scenes(params)[0], Chatty).draw(0, 1, entropy)


def test_a_peer_that_sends_nothing_says_nothing(entropy):
    class Silent(DDMLPeer):
        def started(self, state, now, entropy):
            return state, ()

    found = audit(make_study(1.0, n_updates=2), 10, entropy, Silent)
    assert (found.bound.epsilon, found.packets, found.charged) == (0, 0, 0)
