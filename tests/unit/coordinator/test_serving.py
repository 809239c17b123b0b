"""Draw and update: what is refused, what is merged, and what is done every so many updates."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.coordinator.models.base import Floats, Scrubbed
from shoal.coordinator.models.memory import MemoryModels
from shoal.coordinator.serving import Arrival, Serving, _moments, open_serving
from shoal.domain import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.errors import StoreError, UsageError
from shoal.protocols.ddml.averaging import fold
from shoal.protocols.ddml.honest import centre_and_spread
from shoal.protocols.ddml.judging import WINDOW
from shoal.protocols.ddml.merging import LIMIT, Weights, part_of, steady_variance
from shoal.protocols.ddml.params import Merge, Params
from shoal.protocols.ddml.spam import Filter, Thresholds
from shoal.protocols.ddml.step import make_step
from shoal.study.load import parse
from shoal.study.manifest import Manifest
from shoal.study.templates import study_text

STUDY = "5" * 64
SCHEMA = Schema([Numeric("age", 0, 100, missing=False), Numeric("hours", 0, 99)], label=Categorical("ill", ["no", "yes"]))
K, P = 5, 4


def params_of(*, merge: Merge = "blend", averaging: bool = True, n_instances: int = K) -> Params:
    return Params(SCHEMA, epsilon=4.0, size=1_000, n_instances=n_instances, merge=merge, averaging=averaging)


@pytest.fixture
def store() -> MemoryModels:
    return MemoryModels()


@pytest.fixture
def serving(store: MemoryModels, entropy: SeededEntropy) -> Serving:
    return Serving(params_of(), STUDY, store, None, entropy)


def near(weights: bytes, entropy: SeededEntropy) -> bytes:
    step = entropy.below_many(2001, P) - 1000
    return (np.frombuffer(weights, "<i4") + step).astype("<i4").tobytes()


def send(serving: Serving, entropy: SeededEntropy, n: int) -> None:
    for _ in range(n):
        epoch, weights = serving.draw()
        assert serving.update(entropy.bytes(16), epoch, near(weights, entropy)) == "merged"


def test_a_study_begins_with_the_spread_that_will_remain(entropy: SeededEntropy) -> None:
    store, params = MemoryModels(), params_of(merge="discard", n_instances=400)
    Serving(params, STUDY, store, None, entropy)
    variance = steady_variance(400, 1.0) * make_step(params).deviation ** 2
    instances = store.all_instances(STUDY)
    assert instances.shape == (400, P)
    assert instances.var() == pytest.approx(variance, rel=0.3)


def test_a_study_that_has_begun_goes_on(serving: Serving, store: MemoryModels, entropy: SeededEntropy) -> None:
    send(serving, entropy, 7)
    before = store.all_instances(STUDY).tolist()
    again = Serving(params_of(), STUDY, store, None, entropy)
    assert (store.all_instances(STUDY).tolist(), store.n_merged(STUDY)) == (before, 7)
    send(again, entropy, 1)
    assert store.n_merged(STUDY) == 8


def test_the_store_of_another_study_is_refused(serving: Serving, store: MemoryModels, entropy: SeededEntropy) -> None:
    with pytest.raises(StoreError, match=r"5 instances of 4 weights.*not 6 of 4"):
        Serving(params_of(n_instances=K + 1), STUDY, store, None, entropy)


def test_all_instances_are_drawn_and_merged_into(entropy: SeededEntropy) -> None:
    store = MemoryModels()
    store.create(STUDY, np.repeat(np.arange(K, dtype=np.int32), P).reshape(K, P))
    serving = Serving(params_of(merge="discard"), STUDY, store, None, entropy)
    assert {np.frombuffer(serving.draw()[1], "<i4")[0] for _ in range(200)} == set(range(K))
    for i in range(200):
        serving.update(i.to_bytes(16, "big"), 0, np.full(P, 100, "<i4").tobytes())
    assert (store.all_instances(STUDY) == 100).all()


@pytest.mark.parametrize("merge", ["blend", "discard"])
def test_an_update_moves_one_instance_by_its_part(merge: Merge, entropy: SeededEntropy) -> None:
    store = MemoryModels()
    serving = Serving(params_of(merge=merge), STUDY, store, None, entropy)
    before = store.all_instances(STUDY)
    assert serving.update(bytes(16), 0, np.full(P, 10**6, "<i4").tobytes()) == "merged"
    after = store.all_instances(STUDY)
    (slot,) = np.flatnonzero((before != after).any(axis=1))
    moved = (after[slot] - before[slot]) / (10**6 - before[slot])
    assert moved == pytest.approx([part_of(merge)] * P, rel=1e-4)


def test_a_replacement_is_handed_out_without_a_copy(entropy: SeededEntropy) -> None:
    serving = Serving(params_of(merge="discard", n_instances=1), STUDY, MemoryModels(), None, entropy)
    body = np.arange(P, dtype="<i4").tobytes()
    serving.update(bytes(16), 0, body)
    assert serving.draw()[1] is body


def test_a_repeated_update_counts_once(serving: Serving, store: MemoryModels) -> None:
    body = bytes(4 * P)
    assert [serving.update(bytes(16), 0, body) for _ in range(3)] == ["merged", "repeated", "repeated"]
    assert (store.n_merged(STUDY), store.refusals(STUDY)) == (1, {})


def test_what_has_the_wrong_form_is_refused_and_counted(serving: Serving, store: MemoryModels) -> None:
    fine, least = bytes(4 * P), np.array([0, -LIMIT - 1, 0, 0], "<i4")
    before = store.all_instances(STUDY).tolist()
    for id_, epoch, body, reason in [
        (bytes(15), 0, fine, "size"),
        (bytes(17), 0, fine, "size"),
        (bytes(16), 0, fine[:-4], "size"),
        (bytes(16), 0, fine + bytes(4), "size"),
        (bytes(16), 0, b"", "size"),
        (bytes(16), 0, least.tobytes(), "range"),
        (bytes(16), 1, fine, "early"),
        (bytes(16), -1, fine, "stale"),
    ]:
        assert serving.update(id_, epoch, body) == reason
    assert store.refusals(STUDY) == {"size": 5, "range": 1, "early": 1, "stale": 1}
    assert (store.all_instances(STUDY).tolist(), store.n_merged(STUDY)) == (before, 0)
    assert serving.update(bytes(16), 0, (least + np.array([0, 1, 0, 0], "<i4")).tobytes()) == "merged"


def test_an_update_is_stale_after_the_window_and_its_name_forgotten(serving: Serving, store: MemoryModels, entropy: SeededEntropy) -> None:
    length = serving.params.epoch_updates
    first, body = bytes(16), bytes(4 * P)
    serving.update(first, 0, body)
    send(serving, entropy, length * (WINDOW + 1) - 2)
    assert serving.draw()[0] == WINDOW
    assert serving.update(first, 0, body) == "repeated"
    send(serving, entropy, 1)
    assert serving.draw()[0] == WINDOW + 1
    assert serving.update(first, 0, body) == "stale"
    assert serving.update(b"never seen befor", 0, body) == "stale"
    # The store itself knows, so that a process that has looked away for long merges it neither.
    assert store.merge(STUDY, 0, first, 0, body, 0.1).outcome == "stale"
    assert store.merge(STUDY, 0, b"never seen befor", 1, body, 0.1).outcome == "merged"


def test_a_process_that_has_not_looked_for_long(store: MemoryModels, entropy: SeededEntropy) -> None:
    """It takes an update of an epoch that it has not noticed, and refuses one that the others have forgotten."""
    ahead, behind = (Serving(params_of(), STUDY, store, None, entropy) for _ in range(2))
    send(ahead, entropy, ahead.params.epoch_updates)
    assert ahead.draw()[0] == 1
    assert behind.update(b"16 random bytes!", 1, bytes(4 * P)) == "merged"
    late = Serving(params_of(), STUDY, store, None, entropy)
    store.forget(STUDY, 1)
    assert late.update(b"another 16 bytes", 0, bytes(4 * P)) == "stale"
    assert store.refusals(STUDY) == {"stale": 1}


def test_several_at_once_are_what_they_are_alone(entropy: SeededEntropy) -> None:
    """Also where one comes twice, and where some are refused."""
    alone, together = MemoryModels(), MemoryModels()
    fine = [Arrival(i.to_bytes(16, "big"), 0, np.full(P, 1000 * i, "<i4").tobytes()) for i in range(2 * K + 3)]
    arrivals = [*fine[:3], fine[1], Arrival(bytes(3), 0, bytes(4 * P)), Arrival(bytes(16), 9, bytes(4 * P)), *fine[3:]]
    one, many = (Serving(params_of(), STUDY, kept, None, entropy.spawn("slots")) for kept in (alone, together))
    expected = [one.update(*arrival) for arrival in arrivals]
    assert many.update_many(arrivals) == expected
    assert expected[:6] == ["merged", "merged", "merged", "repeated", "size", "early"]
    assert (many.n_merged, together.refusals(STUDY)) == (2 * K + 3, {"size": 1, "early": 1})
    assert many.update_many([]) == []
    assert {tuple(row) for row in together.all_instances(STUDY).tolist()} == {tuple(row) for row in alone.all_instances(STUDY).tolist()}


def test_after_the_end_no_process_merges_anything(store: MemoryModels, entropy: SeededEntropy) -> None:
    ending, other = (Serving(params_of(), STUDY, store, None, entropy) for _ in range(2))
    send(ending, entropy, 7)
    body = bytes(4 * P)
    before = store.all_instances(STUDY).tolist()
    assert ending.finish() == 7
    assert [serving.update(bytes(16), 0, body) for serving in (ending, other)] == ["stale", "stale"]
    assert other.update(bytes(16), 1, body) == "early"
    assert ending.finish() == 7
    assert store.all_instances(STUDY).tolist() == before
    assert not ending.is_full


class Hurried(MemoryModels):
    """Another process merges as fast as it can: an epoch passes before every look of this one, for as long as there are any left."""

    n_left = 0

    def n_merged(self, study: str) -> int:
        if self.n_left:
            self.n_left -= 1
            self._studies[study].n_merged += Params(SCHEMA, epsilon=4.0, size=1_000).epoch_updates
        return super().n_merged(study)


def test_the_end_outruns_those_who_merge_meanwhile(entropy: SeededEntropy) -> None:
    store = Hurried()
    serving = Serving(params_of(), STUDY, store, None, entropy)
    store.n_left = 4
    n_merged = serving.finish()
    epoch = n_merged // serving.params.epoch_updates
    assert (store.n_left, epoch) == (0, 4)
    assert store.merge(STUDY, 0, bytes(16), epoch, bytes(4 * P), 0.1).outcome == "stale"


def test_refusals_may_be_counted_elsewhere(store: MemoryModels, entropy: SeededEntropy) -> None:
    counted: list[str] = []
    Serving(params_of(), STUDY, store, None, entropy, counted.append).update(bytes(16), 1, bytes(4 * P))
    assert (counted, store.refusals(STUDY)) == (["early"], {})


class Watcher:
    """Accepts all, and notes what it is shown."""

    def __init__(self) -> None:
        self.seen: list[tuple[Floats, Floats, int]] = []

    def gauge(self, centre: Floats, spread: Floats) -> Watching:
        return Watching(self.seen, centre, spread)


class Watching:
    def __init__(self, seen: list[tuple[Floats, Floats, int]], centre: Floats, spread: Floats) -> None:
        self.seen, self.centre, self.spread = seen, centre, spread

    def judge(self, weights: Weights, epoch: int) -> str | None:
        self.seen.append((self.centre, self.spread, epoch))
        return None


@pytest.mark.parametrize("averaging", [True, False])
def test_the_filter_is_shown_instances_of_at_most_k_updates_ago(averaging: bool, entropy: SeededEntropy) -> None:
    store, watcher = MemoryModels(), Watcher()
    serving = Serving(params_of(averaging=averaging), STUDY, store, watcher, entropy)
    history = []
    for _ in range(4 * K):
        history.append(store.all_instances(STUDY))
        send(serving, entropy, 1)
    for i, (centre, spread, epoch) in enumerate(watcher.seen):
        then = history[i // K * K]
        assert centre == pytest.approx(then.mean(axis=0))
        assert spread == pytest.approx(then.std(axis=0, ddof=1))
        assert epoch == 0
    assert len({id(centre) for centre, _, _ in watcher.seen}) == 4


def test_another_process_looks_again_after_k_updates_of_all(store: MemoryModels, entropy: SeededEntropy) -> None:
    watcher = Watcher()
    watching, other = Serving(params_of(), STUDY, store, watcher, entropy), Serving(params_of(), STUDY, store, None, entropy)
    send(other, entropy, K + 1)
    send(watching, entropy, 1)
    now = store.all_instances(STUDY).mean(axis=0)
    send(watching, entropy, 1)
    assert watcher.seen[1][0] == pytest.approx(now)


def test_spam_is_refused_by_its_reason(store: MemoryModels, entropy: SeededEntropy) -> None:
    params = params_of()
    serving = Serving(params, STUDY, store, Filter(params, Thresholds(8.0, 4.0)), entropy)
    epoch, weights = serving.draw()
    reason = serving.update(bytes(16), epoch, np.full(P, 1 << 30, "<i4").tobytes())
    assert "further from the instances" in reason
    assert store.refusals(STUDY) == {reason: 1}
    assert store.n_merged(STUDY) == 0
    assert serving.update(bytes(16), epoch, weights) == "merged"


def test_a_retry_that_looks_like_spam_by_now_is_repeated(store: MemoryModels, entropy: SeededEntropy) -> None:
    """The instances have moved away from it in the meantime."""
    params = params_of(merge="discard")
    far = np.full(P, 1 << 30, "<i4").tobytes()
    Serving(params, STUDY, store, None, entropy).update(b"merged long ago!", 0, far)
    for slot in range(K):
        store.merge(STUDY, slot, slot.to_bytes(16, "big"), 0, bytes(4 * P), 1.0)
    before = store.all_instances(STUDY).tolist()
    serving = Serving(params, STUDY, store, Filter(params, Thresholds(8.0, 4.0)), entropy)
    assert [serving.update(b"merged long ago!", 0, far) for _ in range(2)] == ["repeated"] * 2
    assert (store.n_merged(STUDY), store.refusals(STUDY)) == (K + 1, {})
    reason = serving.update(b"never seen befor", 0, far)
    assert "further from the instances" in reason
    assert (store.all_instances(STUDY).tolist(), store.refusals(STUDY)) == (before, {reason: 1})


class Reluctant(MemoryModels):
    """Says what it is told to when it is to scrub, and notes after how many updates that was, and how long it might have waited."""

    def __init__(self, *answers: Scrubbed) -> None:
        super().__init__()
        self.answers = list(answers)
        self.asked: list[tuple[int, float]] = []

    def scrub(self, seconds: float = 0.0) -> Scrubbed:
        self.asked.append((self.n_merged(STUDY), seconds))
        return self.answers.pop(0) if self.answers else "done"


def test_tidying_comes_with_each_epoch_and_again_where_others_were_in_the_way(entropy: SeededEntropy) -> None:
    store = Reluctant("done", "blocked", "blocked", "begun")
    with Serving(params_of(), STUDY, store, None, entropy) as serving:
        length = serving.params.epoch_updates
        send(serving, entropy, 2 * length + 3)
        assert store.asked == [(0, 0.0), (length, 0.0), (length + K, 0.0), (length + 2 * K, 0.0), (2 * length, 0.0)]
    (n_merged, seconds), n_asked = store.asked[-1], len(store.asked)
    assert (n_merged, n_asked) == (2 * length + 3, 6)
    assert 1 <= seconds <= 60


def test_closing_and_tidying_say_what_became_of_it(entropy: SeededEntropy) -> None:
    serving = Serving(params_of(), STUDY, Reluctant("done", "blocked", "begun"), None, entropy)
    assert (serving.close(), serving.tidy(), serving.close()) == ("blocked", "begun", "done")
    send(serving, entropy, 1)


def test_what_was_too_old_is_forgotten_when_serving_begins(store: MemoryModels, entropy: SeededEntropy) -> None:
    """A process may be killed between the last merge of an epoch and its tidying."""
    store.create(STUDY, np.zeros((K, P), np.int32))
    length = params_of().epoch_updates
    for i in range((WINDOW + 1) * length):
        store.merge(STUDY, 0, i.to_bytes(16, "big"), i // length, bytes(4 * P), 1.0)
    assert store.knows(STUDY, bytes(16), 0)
    Serving(params_of(), STUDY, store, None, entropy)
    assert not store.knows(STUDY, bytes(16), 0)
    assert store.knows(STUDY, length.to_bytes(16, "big"), 1)


def test_a_study_is_served_with_its_own_filter(store: MemoryModels, entropy: SeededEntropy) -> None:
    manifest = Manifest(parse(study_text("ddml")))
    serving = open_serving(manifest, store, entropy)
    study, p = manifest.digest.hex(), serving.params.n_weights
    assert store.shape(study) == (serving.params.n_instances, p)
    epoch, weights = serving.draw()
    assert serving.update(entropy.bytes(16), epoch, weights) == "merged"
    assert "further from the instances" in serving.update(entropy.bytes(16), epoch, np.full(p, 1 << 30, "<i4").tobytes())
    again = open_serving(manifest, store, entropy, in_flight=0)
    assert again.update(entropy.bytes(16), epoch, weights) == "merged"
    assert store.n_merged(study) == 2


def test_a_study_of_another_protocol_has_nothing_to_serve(store: MemoryModels, entropy: SeededEntropy) -> None:
    with pytest.raises(UsageError, match="A study of anonml has no model instances"):
        open_serving(Manifest(parse(study_text("anonml"))), store, entropy)


def test_the_model_is_the_average_of_every_kth_mean(serving: Serving, store: MemoryModels, entropy: SeededEntropy) -> None:
    grid = 2.0**-serving.params.fraction_bits
    assert serving.model().weights == pytest.approx(store.all_instances(STUDY).mean(axis=0).reshape(1, P) * grid)
    expected = np.zeros(P)
    for n in range(1, 9):
        send(serving, entropy, K - 1)
        before = serving.model().weights
        send(serving, entropy, 1)
        expected = fold(expected, store.all_instances(STUDY).mean(axis=0), n)
        assert serving.model().weights == pytest.approx(expected.reshape(1, P) * grid)
        assert serving.model().weights.tolist() != before.tolist()
    kept = store.average(STUDY)
    assert kept is not None
    assert kept.n_folds == 8


def test_without_averaging_the_model_is_the_mean(store: MemoryModels, entropy: SeededEntropy) -> None:
    serving = Serving(params_of(averaging=False), STUDY, store, None, entropy)
    send(serving, entropy, 3 * K)
    assert store.average(STUDY) is None
    assert serving.model().weights == pytest.approx(store.all_instances(STUDY).mean(axis=0).reshape(1, P) * 2.0**-20)


def test_a_body_in_a_buffer(serving: Serving, store: MemoryModels) -> None:
    buffer = bytearray(np.full(P, 77, "<i4").tobytes())
    assert serving.update(bytes(16), 0, memoryview(buffer)) == "merged"


@pytest.mark.parametrize("shape", [(1, 7), (2, 1), (5, 4096), (20, 10_001)])
def test_the_moments_are_those_of_all_instances_together(shape: tuple[int, int], entropy: SeededEntropy) -> None:
    instances = (entropy.words(shape[0] * shape[1], np.uint32).astype(np.int64) - (1 << 31)).astype(np.int32).reshape(shape)
    centre, spread = _moments(instances)
    expected = centre_and_spread(instances.astype(np.float64))
    assert np.array_equal(centre, expected[0])
    np.testing.assert_allclose(spread, expected[1], rtol=1e-12)
