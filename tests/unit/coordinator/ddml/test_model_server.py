"""Draw and update: rejection, merging, and periodic work."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.coordinator.ddml.instances.base import Floats, ScrubOutcome
from shoal.coordinator.ddml.instances.memory import MemoryInstanceStore
from shoal.coordinator.ddml.model_server import ModelServer, ReceivedUpdate, open_model_server
from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.errors import StoreError, UsageError
from shoal.protocols.ddml.merging import (
    EPOCH_WINDOW,
    MAX_WEIGHT,
    Weights,
    compute_moments,
    find_blend_factor,
    steady_variance,
    update_average,
)
from shoal.protocols.ddml.noisy_step import make_step
from shoal.protocols.ddml.params import DDMLParams, Merge
from shoal.protocols.ddml.spam_calibration import compute_centre_and_deviation
from shoal.protocols.ddml.spam_filter import SpamFilter, SpamThresholds
from shoal.study.loader import parse_study_text
from shoal.study.manifest import Manifest
from shoal.study.starters import read_starter

STUDY = "5" * 64
SCHEMA = Schema(
    [Numeric("age", 0, 100, missing=False), Numeric("hours", 0, 99)],
    label=Categorical("ill", ["no", "yes"]),
)
K, P = 5, 4


def make_params(
    *, merge: Merge = "blend", averaging: bool = True, n_instances: int = K
) -> DDMLParams:
    return DDMLParams(
        SCHEMA, epsilon=4.0, size=1_000, n_instances=n_instances, merge=merge, averaging=averaging
    )


@pytest.fixture
def store() -> MemoryInstanceStore:
    return MemoryInstanceStore()


@pytest.fixture
def serving(store: MemoryInstanceStore, entropy: SeededEntropy) -> ModelServer:
    return ModelServer(make_params(), STUDY, store, None, entropy)


def near(weights: bytes, entropy: SeededEntropy) -> bytes:
    step = entropy.below_many(2001, P) - 1000
    return (np.frombuffer(weights, "<i4") + step).astype("<i4").tobytes()


def send(serving: ModelServer, entropy: SeededEntropy, n: int) -> None:
    for _ in range(n):
        epoch, weights = serving.draw()
        assert serving.update(entropy.bytes(16), epoch, near(weights, entropy)) == "merged"


def test_new_study_has_stationary_spread(entropy: SeededEntropy) -> None:
    store, params = MemoryInstanceStore(), make_params(merge="discard", n_instances=400)
    ModelServer(params, STUDY, store, None, entropy)
    variance = steady_variance(400, 1.0) * make_step(params).deviation ** 2
    instances = store.load_instances(STUDY)
    assert instances.shape == (400, P)
    assert instances.var() == pytest.approx(variance, rel=0.3)


def test_server_resumes_existing_study(
    serving: ModelServer, store: MemoryInstanceStore, entropy: SeededEntropy
) -> None:
    send(serving, entropy, 7)
    before = store.load_instances(STUDY).tolist()
    again = ModelServer(make_params(), STUDY, store, None, entropy)
    assert (store.load_instances(STUDY).tolist(), store.count_merged(STUDY)) == (before, 7)
    send(again, entropy, 1)
    assert store.count_merged(STUDY) == 8


def test_server_rejects_instances_of_other_shape(
    serving: ModelServer, store: MemoryInstanceStore, entropy: SeededEntropy
) -> None:
    with pytest.raises(StoreError, match=r"5 instances of 4 weights.*not 6 of 4"):
        ModelServer(make_params(n_instances=K + 1), STUDY, store, None, entropy)


def test_all_instances_are_drawn_and_updated(entropy: SeededEntropy) -> None:
    store = MemoryInstanceStore()
    store.create(STUDY, np.repeat(np.arange(K, dtype=np.int32), P).reshape(K, P))
    serving = ModelServer(make_params(merge="discard"), STUDY, store, None, entropy)
    assert {np.frombuffer(serving.draw()[1], "<i4")[0] for _ in range(200)} == set(range(K))
    for i in range(200):
        serving.update(i.to_bytes(16, "big"), 0, np.full(P, 100, "<i4").tobytes())
    assert (store.load_instances(STUDY) == 100).all()


@pytest.mark.parametrize("merge", ["blend", "discard"])
def test_update_moves_one_instance_by_blend_factor(merge: Merge, entropy: SeededEntropy) -> None:
    store = MemoryInstanceStore()
    serving = ModelServer(make_params(merge=merge), STUDY, store, None, entropy)
    before = store.load_instances(STUDY)
    assert serving.update(bytes(16), 0, np.full(P, 10**6, "<i4").tobytes()) == "merged"
    after = store.load_instances(STUDY)
    (slot,) = np.flatnonzero((before != after).any(axis=1))
    moved = (after[slot] - before[slot]) / (10**6 - before[slot])
    assert moved == pytest.approx([find_blend_factor(merge)] * P, rel=1e-4)


def test_replaced_instance_is_drawn_without_copy(entropy: SeededEntropy) -> None:
    serving = ModelServer(
        make_params(merge="discard", n_instances=1), STUDY, MemoryInstanceStore(), None, entropy
    )
    body = np.arange(P, dtype="<i4").tobytes()
    serving.update(bytes(16), 0, body)
    assert serving.draw()[1] is body


def test_repeated_update_counts_once(serving: ModelServer, store: MemoryInstanceStore) -> None:
    body = bytes(4 * P)
    assert [serving.update(bytes(16), 0, body) for _ in range(3)] == [
        "merged",
        "repeated",
        "repeated",
    ]
    assert (store.count_merged(STUDY), store.list_rejections(STUDY)) == (1, {})


def test_malformed_update_is_rejected_and_counted(
    serving: ModelServer, store: MemoryInstanceStore
) -> None:
    fine, least = bytes(4 * P), np.array([0, -MAX_WEIGHT - 1, 0, 0], "<i4")
    before = store.load_instances(STUDY).tolist()
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
    assert store.list_rejections(STUDY) == {"size": 5, "range": 1, "early": 1, "stale": 1}
    assert (store.load_instances(STUDY).tolist(), store.count_merged(STUDY)) == (before, 0)
    assert (
        serving.update(bytes(16), 0, (least + np.array([0, 1, 0, 0], "<i4")).tobytes()) == "merged"
    )


def test_update_is_stale_after_window_and_its_name_deleted(
    serving: ModelServer, store: MemoryInstanceStore, entropy: SeededEntropy
) -> None:
    length = serving.params.epoch_updates
    first, body = bytes(16), bytes(4 * P)
    serving.update(first, 0, body)
    send(serving, entropy, length * (EPOCH_WINDOW + 1) - 2)
    assert serving.draw()[0] == EPOCH_WINDOW
    assert serving.update(first, 0, body) == "repeated"
    send(serving, entropy, 1)
    assert serving.draw()[0] == EPOCH_WINDOW + 1
    assert serving.update(first, 0, body) == "stale"
    assert serving.update(b"never seen befor", 0, body) == "stale"
    # The store itself knows, so that a process that has looked away for long merges it neither.
    assert store.merge(STUDY, 0, first, 0, body, 0.1).outcome == "stale"
    assert store.merge(STUDY, 0, b"never seen befor", 1, body, 0.1).outcome == "merged"


def test_server_with_old_count_rejects_stale_update(
    store: MemoryInstanceStore, entropy: SeededEntropy
) -> None:
    """It takes an update of an epoch that it has not noticed, and refuses one that the others have
    forgotten.
    """
    ahead, behind = (ModelServer(make_params(), STUDY, store, None, entropy) for _ in range(2))
    send(ahead, entropy, ahead.params.epoch_updates)
    assert ahead.draw()[0] == 1
    assert behind.update(b"16 random bytes!", 1, bytes(4 * P)) == "merged"
    late = ModelServer(make_params(), STUDY, store, None, entropy)
    store.forget(STUDY, 1)
    assert late.update(b"another 16 bytes", 0, bytes(4 * P)) == "stale"
    assert store.list_rejections(STUDY) == {"stale": 1}


def test_updates_in_one_batch_have_same_outcomes_as_alone(entropy: SeededEntropy) -> None:
    """Also where one comes twice, and where some are refused."""
    alone, together = MemoryInstanceStore(), MemoryInstanceStore()
    fine = [
        ReceivedUpdate(i.to_bytes(16, "big"), 0, np.full(P, 1000 * i, "<i4").tobytes())
        for i in range(2 * K + 3)
    ]
    arrivals = [
        *fine[:3],
        fine[1],
        ReceivedUpdate(bytes(3), 0, bytes(4 * P)),
        ReceivedUpdate(bytes(16), 9, bytes(4 * P)),
        *fine[3:],
    ]
    one, many = (
        ModelServer(make_params(), STUDY, kept, None, entropy.spawn("slots"))
        for kept in (alone, together)
    )
    expected = [one.update(*arrival) for arrival in arrivals]
    assert many.update_many(arrivals) == expected
    assert expected[:6] == ["merged", "merged", "merged", "repeated", "size", "early"]
    assert (many.n_merged, together.list_rejections(STUDY)) == (2 * K + 3, {"size": 1, "early": 1})
    assert many.update_many([]) == []
    assert {tuple(row) for row in together.load_instances(STUDY).tolist()} == {
        tuple(row) for row in alone.load_instances(STUDY).tolist()
    }


def test_no_process_merges_after_finish(store: MemoryInstanceStore, entropy: SeededEntropy) -> None:
    ending, other = (ModelServer(make_params(), STUDY, store, None, entropy) for _ in range(2))
    send(ending, entropy, 7)
    body = bytes(4 * P)
    before = store.load_instances(STUDY).tolist()
    assert ending.finish() == 7
    assert [serving.update(bytes(16), 0, body) for serving in (ending, other)] == ["stale", "stale"]
    assert other.update(bytes(16), 1, body) == "early"
    assert ending.finish() == 7
    assert store.load_instances(STUDY).tolist() == before
    assert not ending.is_full


class Hurried(MemoryInstanceStore):
    """Another process merges as fast as it can: an epoch passes before every look of this one, for
    as long as there are any left.
    """

    n_left = 0

    def count_merged(self, study: str) -> int:
        if self.n_left:
            self.n_left -= 1
            self._studies[study].n_merged += DDMLParams(
                SCHEMA, epsilon=4.0, size=1_000
            ).epoch_updates
        return super().count_merged(study)


def test_finish_is_final_despite_concurrent_merges(entropy: SeededEntropy) -> None:
    store = Hurried()
    serving = ModelServer(make_params(), STUDY, store, None, entropy)
    store.n_left = 4
    n_merged = serving.finish()
    epoch = n_merged // serving.params.epoch_updates
    assert (store.n_left, epoch) == (0, 4)
    assert store.merge(STUDY, 0, bytes(16), epoch, bytes(4 * P), 0.1).outcome == "stale"


def test_rejections_are_counted_by_callback(
    store: MemoryInstanceStore, entropy: SeededEntropy
) -> None:
    counted: list[str] = []
    ModelServer(make_params(), STUDY, store, None, entropy, counted.append).update(
        bytes(16), 1, bytes(4 * P)
    )
    assert (counted, store.list_rejections(STUDY)) == (["early"], {})


class Watcher:
    """Accepts all, and notes what it is shown."""

    def __init__(self) -> None:
        self.seen: list[tuple[Floats, Floats, int]] = []

    def make_test(self, centre: Floats, deviation: Floats) -> Watching:
        return Watching(self.seen, centre, deviation)


class Watching:
    def __init__(
        self, seen: list[tuple[Floats, Floats, int]], centre: Floats, deviation: Floats
    ) -> None:
        self.seen, self.centre, self.deviation = seen, centre, deviation

    def find_fault(self, weights: Weights, epoch: int) -> str | None:
        self.seen.append((self.centre, self.deviation, epoch))
        return None


@pytest.mark.parametrize("averaging", [True, False])
def test_spam_filter_uses_statistics_of_at_most_k_updates_ago(
    averaging: bool, entropy: SeededEntropy
) -> None:
    store, watcher = MemoryInstanceStore(), Watcher()
    serving = ModelServer(make_params(averaging=averaging), STUDY, store, watcher, entropy)
    history = []
    for _ in range(4 * K):
        history.append(store.load_instances(STUDY))
        send(serving, entropy, 1)
    for i, (centre, deviation, epoch) in enumerate(watcher.seen):
        then = history[i // K * K]
        assert centre == pytest.approx(then.mean(axis=0))
        assert deviation == pytest.approx(then.std(axis=0, ddof=1))
        assert epoch == 0
    assert len({id(centre) for centre, _, _ in watcher.seen}) == 4


def test_statistics_are_read_again_after_k_updates_of_all_processes(
    store: MemoryInstanceStore, entropy: SeededEntropy
) -> None:
    watcher = Watcher()
    watching, other = (
        ModelServer(make_params(), STUDY, store, watcher, entropy),
        ModelServer(make_params(), STUDY, store, None, entropy),
    )
    send(other, entropy, K + 1)
    send(watching, entropy, 1)
    now = store.load_instances(STUDY).mean(axis=0)
    send(watching, entropy, 1)
    assert watcher.seen[1][0] == pytest.approx(now)


def test_spam_is_rejected_with_reason(store: MemoryInstanceStore, entropy: SeededEntropy) -> None:
    params = make_params()
    serving = ModelServer(
        params, STUDY, store, SpamFilter(params, SpamThresholds(8.0, 4.0)), entropy
    )
    epoch, weights = serving.draw()
    reason = serving.update(bytes(16), epoch, np.full(P, 1 << 30, "<i4").tobytes())
    assert "further from the instances" in reason
    assert store.list_rejections(STUDY) == {reason: 1}
    assert store.count_merged(STUDY) == 0
    assert serving.update(bytes(16), epoch, weights) == "merged"


def test_retry_that_looks_like_spam_is_repeated(
    store: MemoryInstanceStore, entropy: SeededEntropy
) -> None:
    """The instances have moved away from it in the meantime."""
    params = make_params(merge="discard")
    far = np.full(P, 1 << 30, "<i4").tobytes()
    ModelServer(params, STUDY, store, None, entropy).update(b"merged long ago!", 0, far)
    for slot in range(K):
        store.merge(STUDY, slot, slot.to_bytes(16, "big"), 0, bytes(4 * P), 1.0)
    before = store.load_instances(STUDY).tolist()
    serving = ModelServer(
        params, STUDY, store, SpamFilter(params, SpamThresholds(8.0, 4.0)), entropy
    )
    assert [serving.update(b"merged long ago!", 0, far) for _ in range(2)] == ["repeated"] * 2
    assert (store.count_merged(STUDY), store.list_rejections(STUDY)) == (K + 1, {})
    reason = serving.update(b"never seen befor", 0, far)
    assert "further from the instances" in reason
    assert (store.load_instances(STUDY).tolist(), store.list_rejections(STUDY)) == (
        before,
        {reason: 1},
    )


class Reluctant(MemoryInstanceStore):
    """Says what it is told to when it is to scrub, and notes after how many updates that was, and
    how long it might have waited.
    """

    def __init__(self, *answers: ScrubOutcome) -> None:
        super().__init__()
        self.answers = list(answers)
        self.asked: list[tuple[int, float]] = []

    def scrub(self, seconds: float = 0.0) -> ScrubOutcome:
        self.asked.append((self.count_merged(STUDY), seconds))
        return self.answers.pop(0) if self.answers else "done"


def test_server_tidies_each_epoch_and_retries_if_blocked(
    entropy: SeededEntropy,
) -> None:
    store = Reluctant("done", "blocked", "blocked", "begun")
    with ModelServer(make_params(), STUDY, store, None, entropy) as serving:
        length = serving.params.epoch_updates
        send(serving, entropy, 2 * length + 3)
        assert store.asked == [
            (0, 0.0),
            (length, 0.0),
            (length + K, 0.0),
            (length + 2 * K, 0.0),
            (2 * length, 0.0),
        ]
    (n_merged, seconds), n_asked = store.asked[-1], len(store.asked)
    assert (n_merged, n_asked) == (2 * length + 3, 6)
    assert 1 <= seconds <= 60


def test_close_and_tidy_return_outcome_of_scrub(entropy: SeededEntropy) -> None:
    serving = ModelServer(
        make_params(), STUDY, Reluctant("done", "blocked", "begun"), None, entropy
    )
    assert (serving.close(), serving.tidy(), serving.close()) == ("blocked", "begun", "done")
    send(serving, entropy, 1)


def test_server_deletes_old_names_at_start(
    store: MemoryInstanceStore, entropy: SeededEntropy
) -> None:
    """A process may be killed between the last merge of an epoch and its tidying."""
    store.create(STUDY, np.zeros((K, P), np.int32))
    length = make_params().epoch_updates
    for i in range((EPOCH_WINDOW + 1) * length):
        store.merge(STUDY, 0, i.to_bytes(16, "big"), i // length, bytes(4 * P), 1.0)
    assert store.has_update(STUDY, bytes(16), 0)
    ModelServer(make_params(), STUDY, store, None, entropy)
    assert not store.has_update(STUDY, bytes(16), 0)
    assert store.has_update(STUDY, length.to_bytes(16, "big"), 1)


def test_open_model_server_uses_filter_of_study(
    store: MemoryInstanceStore, entropy: SeededEntropy
) -> None:
    manifest = Manifest(parse_study_text(read_starter("ddml")))
    serving = open_model_server(manifest, store, entropy)
    study, p = manifest.digest.hex(), serving.params.n_weights
    assert store.find_shape(study) == (serving.params.n_instances, p)
    epoch, weights = serving.draw()
    assert serving.update(entropy.bytes(16), epoch, weights) == "merged"
    assert "further from the instances" in serving.update(
        entropy.bytes(16), epoch, np.full(p, 1 << 30, "<i4").tobytes()
    )
    again = open_model_server(manifest, store, entropy, in_flight=0)
    assert again.update(entropy.bytes(16), epoch, weights) == "merged"
    assert store.count_merged(study) == 2


def test_open_model_server_rejects_other_protocol(
    store: MemoryInstanceStore, entropy: SeededEntropy
) -> None:
    with pytest.raises(UsageError, match="A study of anonml has no model instances"):
        open_model_server(Manifest(parse_study_text(read_starter("anonml"))), store, entropy)


def test_model_is_average_of_every_kth_mean(
    serving: ModelServer, store: MemoryInstanceStore, entropy: SeededEntropy
) -> None:
    grid = 2.0**-serving.params.fraction_bits
    assert serving.make_model().weights == pytest.approx(
        store.load_instances(STUDY).mean(axis=0).reshape(1, P) * grid
    )
    expected = np.zeros(P)
    for n in range(1, 9):
        send(serving, entropy, K - 1)
        before = serving.make_model().weights
        send(serving, entropy, 1)
        expected = update_average(expected, store.load_instances(STUDY).mean(axis=0), n)
        assert serving.make_model().weights == pytest.approx(expected.reshape(1, P) * grid)
        assert serving.make_model().weights.tolist() != before.tolist()
    kept = store.load_average(STUDY)
    assert kept is not None
    assert kept.n_folds == 8


def test_model_without_averaging_is_mean(
    store: MemoryInstanceStore, entropy: SeededEntropy
) -> None:
    serving = ModelServer(make_params(averaging=False), STUDY, store, None, entropy)
    send(serving, entropy, 3 * K)
    assert store.load_average(STUDY) is None
    assert serving.make_model().weights == pytest.approx(
        store.load_instances(STUDY).mean(axis=0).reshape(1, P) * 2.0**-20
    )


def test_update_accepts_memoryview(serving: ModelServer, store: MemoryInstanceStore) -> None:
    buffer = bytearray(np.full(P, 77, "<i4").tobytes())
    assert serving.update(bytes(16), 0, memoryview(buffer)) == "merged"


@pytest.mark.parametrize("shape", [(1, 7), (2, 1), (5, 4096), (20, 10_001)])
def test_statistics_cover_all_instances(shape: tuple[int, int], entropy: SeededEntropy) -> None:
    instances = (
        (entropy.words(shape[0] * shape[1], np.uint32).astype(np.int64) - (1 << 31))
        .astype(np.int32)
        .reshape(shape)
    )
    centre, deviation = compute_moments(instances)
    expected = compute_centre_and_deviation(instances.astype(np.float64))
    assert np.array_equal(centre, expected[0])
    np.testing.assert_allclose(deviation, expected[1], rtol=1e-12)
