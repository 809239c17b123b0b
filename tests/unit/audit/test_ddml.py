"""A device's whole output: instances that push two rows apart, steps read from what left, and peers that cheat."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.audit.ddml import Outputs, Stage, clipped, corners, evidence, look, make_scenes
from shoal.audit.studies import claim_of, judge, plan_of
from shoal.privacy.accountant import sequential
from shoal.privacy.rounding import grains_up
from shoal.protocols.base import MemoryLedger, Send
from shoal.protocols.ddml.links import means
from shoal.protocols.ddml.peer import DDMLPeer
from shoal.protocols.ddml.rows import Rows
from shoal.protocols.ddml.step import AdditiveStep, ClosestStep, make_step
from shoal.study.ddml import params_of
from unit.audit.ddml_studies import STUDIES, Cheap, Eager, Repetitive, Shy, TenthNoise, Unclipped, make_study

DIGEST = bytes(range(32))
NAMES = list(STUDIES)


def audit(study, samples, entropy, peer=DDMLPeer, confidence=0.9):
    """The audit of a study with fewer peers than a user may ask for."""
    whole = sequential(plan_of(study).charges)
    return judge(look(study, claim_of(study), whole, samples, entropy, peer), confidence, grains_up(whole.epsilon))


def gradients(params, scene, instance):
    return [Rows.of(params, *scene.device(which)).gradient(params, instance) for which in (0, 1)]


def predictions(params, scene, instance):
    weights = instance.reshape(params.n_outputs, -1) * 2.0**-params.fraction_bits
    return means(params.link, params.design.inputs(scene.columns).times(weights))


def cosine(one, other):
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


@pytest.mark.parametrize("name", NAMES)
def test_where_the_model_is_undecided_gradients_are_opposite(name):
    params = params_of(STUDIES[name])
    undecided, _ = make_scenes(params)
    [instance] = undecided.instances
    first, second = gradients(params, undecided, instance)
    middle = 0.5 if params.n_outputs == 1 else 1 / params.n_outputs
    assert predictions(params, undecided, instance)[:, -1] == pytest.approx([middle, middle], abs=1e-5)
    assert cosine(first, second) < (-0.999 if params.n_outputs == 1 else -0.45)


@pytest.mark.parametrize("name", NAMES)
def test_where_the_model_is_certain_it_is_wrong_about_both(name):
    params = params_of(STUDIES[name])
    undecided, certain = make_scenes(params)
    first, second = predictions(params, certain, certain.instances[0])
    assert first[-1] > 0.999 and second[-1] < 0.001
    assert params.n_outputs == 1 or second[0] > 0.999
    first, second = gradients(params, certain, certain.instances[0])
    assert cosine(first, second) < -0.5
    largest = [np.linalg.norm(gradient) for gradient in gradients(params, undecided, undecided.instances[0])]
    assert min(np.linalg.norm(first), np.linalg.norm(second)) > 1.1 * max(largest) * (0.9 if params.n_outputs > 1 else 1)


def test_from_a_second_update_on_one_row_has_its_gradient_again_and_the_other_none():
    params = params_of(make_study(2.0, n_updates=2))
    _, certain = make_scenes(params)
    first, second = (gradients(params, certain, instance) for instance in certain.instances)
    assert first[0] == pytest.approx(second[0]) and np.abs(second[1]).max() < 1e-9 < np.abs(first[1]).max()
    assert len(make_scenes(params_of(make_study(2.0)))[1].instances) == 1


def test_corners_are_low_where_they_are_named():
    schema = params_of(STUDIES["texts"]).schema
    columns = corners(schema, ("hour", "words"))
    assert columns["hour"].tolist() == [24, 0] and columns["topic"].tolist() == [1, 1]
    assert [grams.tolist() for grams in columns["words"]] == [[0], []]
    assert [grams.tolist() for grams in corners(schema, ())["words"]] == [[0], [0]]


def test_the_column_that_turns_is_in_few_crosses():
    features = [{"name": name, "values": ["a", "b"], "missing": False} for name in ("one", "two", "three")]
    study = make_study(2.0, feature=features, ddml={"crosses": [["one", "two"], ["one", "three"]]})
    assert make_scenes(params_of(study))[1].rows[1] == "highest values but for two, and last label"


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


@pytest.mark.parametrize("name", ["plus", "paper", "weight", "delta", "classes"])
def test_at_a_large_epsilon_the_steps_are_those_of_the_row(name, entropy):
    """And so the evidence tells the rows apart."""
    study = STUDIES[name]
    params = params_of(study.model_copy(update={"privacy": study.privacy.model_copy(update={"epsilon": 30.0})}))
    for scene in make_scenes(params):
        drawn = [Stage(DIGEST, params, scene).draw(which, 5, entropy) for which in (0, 1)]
        first, second = (evidence(params, scene, outputs).sum(axis=1) for outputs in drawn)
        assert max(first) < min(second)


def test_evidence_is_the_log_ratio_of_laplace_noise():
    """Up to the noise's scale: half a step nearer to the second row says nothing, a whole one everything."""
    params = params_of(STUDIES["paper"])
    [scene, _] = make_scenes(params)
    first, second = (clipped(make_step(params), gradient) for gradient in gradients(params, scene, scene.instances[0]))
    middle, whole = (first + second) // 2, np.abs(second - first)
    outputs = Outputs(tuple(step.astype(np.int64)[np.newaxis] for step in (first, middle, second, 3 * second)), 0)
    found = evidence(params, scene, outputs)
    assert found[0].tolist() == (-whole).tolist() and found[2].tolist() == found[3].tolist() == whole.tolist()
    assert np.abs(found[1]).max() <= 2


@pytest.mark.parametrize("name", ["plus", "paper"])
def test_a_step_before_noise_is_never_longer_than_the_clip(name):
    params = params_of(STUDIES[name])
    step = make_step(params)
    short, long = np.full(params.n_weights, 1e-3), np.full(params.n_weights, 1e3)
    assert clipped(step, short) == pytest.approx(-step.scale * short, abs=1)
    norm = 2 if name == "plus" else 1
    bound = step.scale * step.clip if name == "plus" else step.bound
    assert np.linalg.norm(clipped(step, long), norm) == pytest.approx(bound, rel=1e-4)


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
        "the constant's weight": ("weight", 1),
        "how many updates were sent": ("update", p),
    }


@pytest.mark.parametrize(
    ("study", "peer", "samples", "seen_in"),
    [
        (make_study(1.0), TenthNoise, 80, "what was sent"),
        (make_study(1.0, unit="weight"), TenthNoise, 80, "the constant's weight"),
        (make_study(1.0, variant="paper", ddml={"clip": 0.1}), Unclipped, 100, "what was sent"),
        (make_study(1.0, unit="weight"), Unclipped, 60, "the constant's weight"),
        (make_study(1.0, n_updates=2), Repetitive, 150, "how two updates differ"),
        (make_study(1.0, n_updates=3, variant="paper"), Repetitive, 60, "how two updates differ"),
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
    steps = Stage(DIGEST, params, scene).run(DDMLPeer(DIGEST, params, *scene.device(0)), ledger, entropy)
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
