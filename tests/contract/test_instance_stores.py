"""One suite for every store of model instances: memory, SQLite, Redis, PostgreSQL.

It checks the contract of a store, the data that it leaves on the disk, and that devices train a
model through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from shoal.coordinator.ddml.instances import open_instance_store
from shoal.coordinator.ddml.instances.base import Average, InstanceStore, PendingUpdate
from shoal.coordinator.ddml.model_server import ModelServer, open_model_server
from shoal.data.schema import Categorical, Schema, Text
from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import StoreError
from shoal.messages.base import Array, Message, Record
from shoal.protocols.base import Aggregator, Effects, Send, run_local
from shoal.protocols.ddml.merging import MAX_WEIGHT, merge_update
from shoal.protocols.ddml.messages import MESSAGES, DDMLDraw, DDMLInstance, DDMLUpdate
from shoal.protocols.ddml.params import DDMLParams, Merge
from shoal.protocols.ddml.peer import DDMLPeer
from shoal.study.ddml import build_params
from shoal.study.manifest import Manifest
from shoal.study.validation import parse_study
from tests.support.ddml import people
from tests.support.stores import KINDS, ON_DISK, SHARED, databases, on_disk, open_address

STUDY, OTHER = "5" * 64, "6" * 64
K, P = 3, 7
FIRST = np.arange(K * P, dtype=np.int32).reshape(K, P)


@pytest.fixture(scope="module")
def new_database() -> Iterator[Callable[[], str]]:
    with databases() as new:
        yield new


@pytest.fixture(params=KINDS)
def store(
    request: pytest.FixtureRequest, tmp_path: Path, new_database: Callable[[], str]
) -> Iterator[InstanceStore]:
    with (
        open_address(request.param, tmp_path, new_database) as address,
        open_instance_store(None, address) as made,
    ):
        made.create(STUDY, FIRST)
        yield made


@pytest.fixture(params=SHARED)
def pair(
    request: pytest.FixtureRequest, tmp_path: Path, new_database: Callable[[], str]
) -> Iterator[tuple[InstanceStore, InstanceStore]]:
    with (
        open_address(request.param, tmp_path, new_database) as address,
        open_instance_store(None, address) as one,
        open_instance_store(None, address) as another,
    ):
        one.create(STUDY, FIRST)
        yield one, another


def model(value: int) -> bytes:
    return np.full(P, value, "<i4").tobytes()


def name(i: int) -> bytes:
    return i.to_bytes(16, "big")


def read_weights(body: bytes) -> list[int]:
    return [int(value) for value in np.frombuffer(body, "<i4")]


def test_instance_store_returns_new_study_as_created(store: InstanceStore) -> None:
    assert store.find_shape(STUDY) == (K, P)
    assert store.count_merged(STUDY) == 0
    assert store.load_average(STUDY) is None
    assert store.list_rejections(STUDY) == {}
    assert store.load_instances(STUDY).dtype == np.int32
    assert store.load_instances(STUDY).tolist() == FIRST.tolist()
    for slot in range(K):
        n_merged, weights = store.draw(STUDY, slot)
        assert n_merged == 0
        assert type(weights) is bytes
        assert read_weights(weights) == FIRST[slot].tolist()


def test_instance_store_create_again_changes_nothing(store: InstanceStore) -> None:
    store.merge(STUDY, 0, name(0), 0, model(9), 1.0)
    store.create(STUDY, FIRST + 1)
    assert store.count_merged(STUDY) == 1
    assert store.load_instances(STUDY).tolist() == [[9] * P, *FIRST[1:].tolist()]


@pytest.mark.parametrize("shape", [(K + 1, P), (K, P - 1), (P, K)])
def test_instance_store_rejects_other_shape(store: InstanceStore, shape: tuple[int, int]) -> None:
    with pytest.raises(
        StoreError, match=f"{K} instances of {P} weights.*not {shape[0]} of {shape[1]}"
    ):
        store.create(STUDY, np.zeros(shape, np.int32))
    assert store.load_instances(STUDY).tolist() == FIRST.tolist()


def test_instance_store_replacement_equals_update(store: InstanceStore) -> None:
    assert store.merge(STUDY, 1, name(1), 0, model(-5), 1.0) == ("merged", 1)
    assert store.draw(STUDY, 1) == (1, model(-5))
    assert store.load_instances(STUDY)[[0, 2]].tolist() == FIRST[[0, 2]].tolist()


def test_instance_store_blends_like_protocol(store: InstanceStore, entropy: SeededEntropy) -> None:
    expected = FIRST.copy()
    for i in range(30):
        update = (entropy.words(P, np.uint32).view(np.int32) | 1).astype("<i4")
        slot = entropy.below(K)
        expected[slot] = merge_update(expected[slot], update, 0.1)
        assert store.merge(STUDY, slot, name(i), 0, update.tobytes(), 0.1) == ("merged", i + 1)
    assert store.load_instances(STUDY).tolist() == expected.tolist()
    assert np.abs(expected).max() > 1 << 24


@pytest.mark.parametrize("part", [0.1, 1.0])
def test_instance_store_keeps_any_bytes(store: InstanceStore, part: float) -> None:
    """Store zeros, line ends and bytes that are not UTF-8, in weights and in ids."""
    odd = np.array([0, MAX_WEIGHT, -MAX_WEIGHT, 0x0D0A0D0A, 0x000000FF, -1, 0x0A2A240D], "<i4")
    awkward = [bytes(16), b"\r\n" * 8, b"\xff" * 16, b"\x00" * 15 + b"\n"]
    for i, id_ in enumerate(awkward):
        assert store.merge(STUDY, 2, id_, 0, odd.tobytes(), part) == ("merged", i + 1)
        assert store.merge(STUDY, 2, id_, 0, odd.tobytes(), part) == ("repeated", i + 1)
    if part == 1:
        assert store.draw(STUDY, 2).weights == odd.tobytes()


def test_instance_store_copies_update_out_of_buffer(store: InstanceStore) -> None:
    """Change the buffer after the merge: a transport may reuse it."""
    buffer = bytearray(model(4))
    store.merge(STUDY, 0, name(0), 0, memoryview(buffer), 1.0)
    store.merge(STUDY, 1, name(1), 0, memoryview(buffer), 0.5)
    buffer[:] = bytes(len(buffer))
    assert store.draw(STUDY, 0).weights == model(4)
    assert read_weights(store.draw(STUDY, 1).weights) == [
        round(7 + i + 0.5 * (4 - 7 - i)) for i in range(P)
    ]


@pytest.mark.parametrize("part", [0.1, 1.0])
def test_instance_store_ignores_repeated_update(store: InstanceStore, part: float) -> None:
    store.merge(STUDY, 0, name(1), 3, model(100), part)
    before = store.load_instances(STUDY).tolist()
    assert store.merge(STUDY, 0, name(1), 3, model(100), part) == ("repeated", 1)
    assert store.merge(STUDY, 2, name(1), 3, model(-100), part) == ("repeated", 1)
    assert store.load_instances(STUDY).tolist() == before
    assert store.merge(STUDY, 2, name(2), 3, model(-100), part) == ("merged", 2)


@pytest.mark.parametrize("part", [0.1, 1.0])
def test_instance_store_merges_batch_like_single_updates(
    store: InstanceStore, part: float, entropy: SeededEntropy
) -> None:
    """Merge retries within and across batches, stale updates, and instances that change often."""
    store.create(OTHER, FIRST)
    for study in (STUDY, OTHER):
        store.forget(study, 1)
    arriving = [
        PendingUpdate(entropy.below(K), name(entropy.below(25)), entropy.below(3), model(1000 * i))
        for i in range(60)
    ]
    alone = [store.merge(OTHER, *one, part) for one in arriving]
    together = [
        became
        for start in range(0, 60, 15)
        for became in store.merge_many(STUDY, arriving[start : start + 15], part)
    ]
    assert together == alone
    assert {outcome for outcome, _ in alone} == {"merged", "repeated", "stale"}
    assert store.load_instances(STUDY).tolist() == store.load_instances(OTHER).tolist()
    assert store.count_merged(STUDY) == store.count_merged(OTHER) == alone[-1].n_merged
    assert store.merge_many(STUDY, [], part) == []


def test_instance_store_forgets_ids_by_epoch_and_rejects_stale(store: InstanceStore) -> None:
    for epoch in range(5):
        store.merge(STUDY, 0, name(epoch), epoch, model(epoch), 1.0)
    store.forget(STUDY, 3)
    assert store.merge(STUDY, 1, name(2), 2, model(50), 1.0) == ("stale", 5)
    assert store.merge(STUDY, 1, name(99), 2, model(50), 1.0) == ("stale", 5)
    assert store.merge(STUDY, 1, name(99), -1, model(50), 1.0) == ("stale", 5)
    assert store.merge(STUDY, 1, name(3), 3, model(50), 1.0) == ("repeated", 5)
    assert store.merge(STUDY, 1, name(99), 3, model(50), 1.0) == ("merged", 6)
    assert store.load_instances(STUDY).tolist() == [[4] * P, [50] * P, FIRST[2].tolist()]


def test_instance_store_never_moves_epoch_back(store: InstanceStore) -> None:
    store.forget(STUDY, 7)
    store.forget(STUDY, 2)
    assert store.merge(STUDY, 0, name(0), 6, model(0), 1.0).outcome == "stale"
    assert store.merge(STUDY, 0, name(0), 7, model(0), 1.0).outcome == "merged"


def test_instance_store_knows_id_from_merge_until_forgotten(store: InstanceStore) -> None:
    assert not store.has_update(STUDY, name(1), 2)
    assert store.merge(STUDY, 0, name(1), 2, model(1), 1.0) == ("merged", 1)
    assert store.has_update(STUDY, name(1), 2)
    assert not store.has_update(STUDY, name(1), 1)
    assert not store.has_update(STUDY, name(2), 2)
    store.forget(STUDY, 2)
    assert store.has_update(STUDY, name(1), 2)
    store.forget(STUDY, 3)
    assert not store.has_update(STUDY, name(1), 2)
    assert store.count_merged(STUDY) == 1


def test_instance_store_keeps_averages_in_order(store: InstanceStore) -> None:
    first, second = np.linspace(-1e6, 1e6, P), np.linspace(0, 1 / 3, P)
    assert not store.save_average(STUDY, Average(2, second))
    assert store.save_average(STUDY, Average(1, first))
    assert not store.save_average(STUDY, Average(1, second))
    assert not store.save_average(STUDY, Average(3, second))
    kept = store.load_average(STUDY)
    assert kept is not None
    assert (kept.n_folds, kept.weights.tolist()) == (1, first.tolist())
    for n in range(2, 300):
        assert store.save_average(STUDY, Average(n, second))
    kept = store.load_average(STUDY)
    assert kept is not None
    assert (kept.n_folds, kept.weights.tolist()) == (299, second.tolist())


def test_instance_store_counts_rejections_by_reason(store: InstanceStore) -> None:
    for reason in ("spam", "size", "spam", "größe"):
        store.count_rejection(STUDY, reason)
    assert store.list_rejections(STUDY) == {"spam": 2, "size": 1, "größe": 1}
    assert store.count_merged(STUDY) == 0


def test_instance_store_separates_studies(store: InstanceStore) -> None:
    store.create(OTHER, np.zeros((1, 2), np.int32))
    store.merge(STUDY, 0, name(1), 0, model(1), 1.0)
    store.count_rejection(STUDY, "spam")
    store.save_average(STUDY, Average(1, np.ones(P)))
    store.forget(STUDY, 1)
    assert (
        store.find_shape(OTHER),
        store.count_merged(OTHER),
        store.load_average(OTHER),
        store.list_rejections(OTHER),
    ) == (
        (1, 2),
        0,
        None,
        {},
    )
    assert store.merge(OTHER, 0, name(1), 0, bytes(8), 1.0) == ("merged", 1)


def test_instance_store_reports_unknown_study(store: InstanceStore) -> None:
    assert store.find_shape(OTHER) is None
    for call in (
        lambda: store.draw(OTHER, 0),
        lambda: store.merge(OTHER, 0, name(0), 0, model(0), 0.1),
        lambda: store.merge(OTHER, 0, name(0), 0, model(0), 1.0),
        lambda: store.merge_many(OTHER, [PendingUpdate(0, name(0), 0, model(0))], 0.1),
        lambda: store.load_instances(OTHER),
        lambda: store.count_merged(OTHER),
    ):
        with pytest.raises(StoreError, match="STORE-002"):
            call()
    assert store.find_shape(OTHER) is None


def test_instance_store_scrub_keeps_all_answers(store: InstanceStore) -> None:
    for i in range(20):
        store.merge(STUDY, i % K, name(i), i // 10, model(i), 0.5)
    before = store.load_instances(STUDY).tolist()
    assert store.scrub() in ("done", "begun")
    assert store.scrub(5.0) in ("done", "begun")
    assert (store.count_merged(STUDY), store.load_instances(STUDY).tolist()) == (20, before)
    assert store.merge(STUDY, 0, name(3), 0, model(0), 1.0).outcome == "repeated"


@pytest.mark.parametrize("part", [0.1, 1.0])
def test_instance_store_merge_is_visible_to_other_process(
    pair: tuple[InstanceStore, InstanceStore], part: float
) -> None:
    one, another = pair
    for i in range(10):
        assert one.merge(STUDY, i % K, name(2 * i), 0, model(i), part).n_merged == 2 * i + 1
        assert another.has_update(STUDY, name(2 * i), 0)
        assert another.merge(STUDY, i % K, name(2 * i), 0, model(i), part) == (
            "repeated",
            2 * i + 1,
        )
        assert (
            another.merge(STUDY, i % K, name(2 * i + 1), 0, model(-i), part).n_merged == 2 * i + 2
        )
        assert one.draw(STUDY, i % K) == another.draw(STUDY, i % K)
    assert one.load_instances(STUDY).tolist() == another.load_instances(STUDY).tolist()
    another.forget(STUDY, 1)
    assert one.merge(STUDY, 0, name(0), 0, model(0), part).outcome == "stale"


def test_instance_store_average_is_saved_by_one_of_two(
    pair: tuple[InstanceStore, InstanceStore],
) -> None:
    one, another = pair
    assert one.save_average(STUDY, Average(1, np.ones(P)))
    assert not another.save_average(STUDY, Average(1, np.zeros(P)))
    kept = another.load_average(STUDY)
    assert kept is not None
    assert kept.weights.tolist() == [1.0] * P


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", [0.5, 1.0])
def test_instance_store_is_thread_safe(
    kind: str, part: float, tmp_path: Path, new_database: Callable[[], str]
) -> None:
    with (
        open_address(kind, tmp_path, new_database) as address,
        open_instance_store(None, address) as store,
    ):
        store.create(STUDY, np.zeros((1, P), np.int32))
        outcomes: list[str] = []

        def work() -> None:
            for i in range(100):
                outcomes.append(store.merge(STUDY, 0, name(i), 0, model(i), part).outcome)
                assert len(set(read_weights(store.draw(STUDY, 0).weights))) == 1

        threads = [Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (outcomes.count("merged"), outcomes.count("repeated")) == (100, 300)
        assert store.count_merged(STUDY) == 100


@pytest.mark.parametrize("kind", ON_DISK)
@pytest.mark.parametrize("merge", ["blend", "discard"])
def test_instance_store_keeps_only_current_instances_on_close(
    kind: str, merge: Merge, tmp_path: Path, new_database: Callable[[], str], entropy: SeededEntropy
) -> None:
    """Search the files for old instances.

    Another process has the store open, so that closing the last connection does not clear anything.
    """
    schema = Schema(
        [], label=Categorical("opened", ["no", "yes"]), texts=[Text("query", buckets=1_500)]
    )
    params = DDMLParams(schema, epsilon=4.0, size=1_000, n_instances=K, merge=merge)
    updates = [
        entropy.words(params.n_weights, np.uint32).astype("<u4").tobytes() for _ in range(20)
    ]
    with (
        open_address(kind, tmp_path, new_database) as address,
        open_instance_store(None, address) as store,
        open_instance_store(None, address) as another,
    ):
        server, versions = ModelServer(params, STUDY, store, None, entropy), set()
        for i, update in enumerate(updates):
            assert server.update(name(i), 0, update) == "merged"
            versions |= {row.tobytes()[:200] for row in store.load_instances(STUDY)}
        # The numbers are random: no file can hold them in fewer bytes, so a number that is not
        # found is not there.
        left = on_disk(address)
        assert sum(version in left for version in versions) >= 20
        assert [update[:200] in left for update in updates] == [merge == "discard"] * 20
        assert server.close() == "done"
        left, now = on_disk(address), {row.tobytes()[:200] for row in another.load_instances(STUDY)}
        assert {version for version in versions if version in left} == now
        assert another.merge(STUDY, 0, name(3), 0, updates[3], 1.0).outcome == "repeated"


class Counter(Aggregator[Record]):
    """An aggregator that passes requests and updates of real devices to a `ModelServer`."""

    messages = MESSAGES

    def __init__(self, study: bytes, server: ModelServer) -> None:
        self.study = study
        self.serving = server
        self.outcomes: list[str] = []

    def initial_state(self) -> Record:
        return Record()

    def on_start(self, state: Record, now: datetime, entropy: Entropy) -> tuple[Record, Effects]:
        return state, ()

    def on_message(
        self, state: Record, sender: str, message: Message, now: datetime, entropy: Entropy
    ) -> tuple[Record, Effects]:
        p = self.serving.params.n_weights
        if isinstance(message, DDMLUpdate):
            self.outcomes.append(
                self.serving.update(
                    message.id, message.epoch, message.weights.expect("int32", p).tobytes()
                )
            )
            return state, ()
        assert isinstance(message, DDMLDraw)
        epoch, weights = self.serving.draw()
        instance = Array.from_values(np.frombuffer(weights, "<i4").astype(np.int32))
        return state, (
            Send(
                sender,
                DDMLInstance(study=self.study, draw=message.id, epoch=epoch, weights=instance),
            ),
        )


@pytest.mark.parametrize("kind", KINDS)
def test_instance_store_serves_devices_that_train_a_model(
    kind: str, tmp_path: Path, new_database: Callable[[], str], entropy: SeededEntropy
) -> None:
    """Train with ledgers, spam filter, model server and store; only HTTP is left out.

    All devices draw before the first update arrives.
    """
    study = parse_study(
        {
            "title": "Naps",
            "purpose": "Who naps?",
            "contact": "a@example.org",
            "protocol": "ddml",
            "label": {"name": "naps", "values": ["no", "yes"]},
            "feature": [
                {"name": "age", "range": [0, 10]},
                {"name": "town", "values": ["x", "y", "z"], "missing": False},
            ],
            "privacy": {"epsilon": 20.0, "n_updates": 2},
            "participation": {"minimum": 10, "size": 300},
            "ddml": {"n_instances": 5},
        }
    )
    manifest, n, params = Manifest(study), study.participation.size, build_params(study)
    columns, labels = people(params.schema, n)
    peers = {}
    for i in range(n):
        own = {column: values[i : i + 1] for column, values in columns.items()}
        peers[f"device-{i}"] = DDMLPeer(manifest.digest, params, own, labels[i : i + 1])
    with (
        open_address(kind, tmp_path, new_database) as address,
        open_instance_store(None, address) as store,
        open_model_server(manifest, store, entropy, in_flight=n) as server,
    ):
        counter = Counter(manifest.digest, server)
        outcome = run_local(counter, peers, entropy)
        assert (outcome.failed, outcome.rejected, outcome.aborted) == ([], [], {})
        n_merged = counter.outcomes.count("merged")
        assert (len(counter.outcomes), store.count_merged(manifest.digest.hex())) == (
            2 * n,
            n_merged,
        )
        assert n_merged >= 1.9 * n
        unseen, truth = people(params.schema, 1_000, seed=1)
        assert (server.make_model().decide(unseen) == truth).mean() > 0.75
