"""One suite for every store of model instances: memory, SQLite, Redis, PostgreSQL. What a store owes, what it leaves on the disk, and
that devices train a model through it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from ddml_cases import people
from model_stores import KINDS, ON_DISK, SHARED, address_of, databases, on_disk
from shoal.coordinator.models import open_models
from shoal.coordinator.models.base import Arriving, Average, ModelStore
from shoal.coordinator.serving import Serving, open_serving
from shoal.domain import Categorical, Schema, Text
from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import StoreError
from shoal.messages.base import Array, Message, Record
from shoal.protocols.base import Aggregator, Effects, Send, run_local
from shoal.protocols.ddml.merging import LIMIT, merged
from shoal.protocols.ddml.messages import MESSAGES, Draw, Instance, Update
from shoal.protocols.ddml.params import Merge, Params
from shoal.protocols.ddml.peer import DDMLPeer
from shoal.study.ddml import params_of
from shoal.study.manifest import Manifest
from shoal.study.spec import Study

STUDY, OTHER = "5" * 64, "6" * 64
K, P = 3, 7
FIRST = np.arange(K * P, dtype=np.int32).reshape(K, P)


@pytest.fixture(scope="module")
def new_database() -> Iterator[Callable[[], str]]:
    with databases() as new:
        yield new


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path, new_database: Callable[[], str]) -> Iterator[ModelStore]:
    with address_of(request.param, tmp_path, new_database) as address, open_models(None, address) as made:
        made.create(STUDY, FIRST)
        yield made


@pytest.fixture(params=SHARED)
def pair(request: pytest.FixtureRequest, tmp_path: Path, new_database: Callable[[], str]) -> Iterator[tuple[ModelStore, ModelStore]]:
    with (
        address_of(request.param, tmp_path, new_database) as address,
        open_models(None, address) as one,
        open_models(None, address) as another,
    ):
        one.create(STUDY, FIRST)
        yield one, another


def model(value: int) -> bytes:
    return np.full(P, value, "<i4").tobytes()


def name(i: int) -> bytes:
    return i.to_bytes(16, "big")


def weights_of(body: bytes) -> list[int]:
    return [int(value) for value in np.frombuffer(body, "<i4")]


def test_a_new_study_is_as_it_was_created(store: ModelStore) -> None:
    assert store.shape(STUDY) == (K, P)
    assert store.n_merged(STUDY) == 0
    assert store.average(STUDY) is None
    assert store.refusals(STUDY) == {}
    assert store.all_instances(STUDY).dtype == np.int32
    assert store.all_instances(STUDY).tolist() == FIRST.tolist()
    for slot in range(K):
        n_merged, weights = store.draw(STUDY, slot)
        assert n_merged == 0
        assert type(weights) is bytes
        assert weights_of(weights) == FIRST[slot].tolist()


def test_creating_again_changes_nothing(store: ModelStore) -> None:
    store.merge(STUDY, 0, name(0), 0, model(9), 1.0)
    store.create(STUDY, FIRST + 1)
    assert store.n_merged(STUDY) == 1
    assert store.all_instances(STUDY).tolist() == [[9] * P, *FIRST[1:].tolist()]


@pytest.mark.parametrize("shape", [(K + 1, P), (K, P - 1), (P, K)])
def test_another_shape_is_refused(store: ModelStore, shape: tuple[int, int]) -> None:
    with pytest.raises(StoreError, match=f"{K} instances of {P} weights.*not {shape[0]} of {shape[1]}"):
        store.create(STUDY, np.zeros(shape, np.int32))
    assert store.all_instances(STUDY).tolist() == FIRST.tolist()


def test_a_replacement_is_the_update_itself(store: ModelStore) -> None:
    assert store.merge(STUDY, 1, name(1), 0, model(-5), 1.0) == ("merged", 1)
    assert store.draw(STUDY, 1) == (1, model(-5))
    assert store.all_instances(STUDY)[[0, 2]].tolist() == FIRST[[0, 2]].tolist()


def test_a_blend_is_the_protocols_own(store: ModelStore, entropy: SeededEntropy) -> None:
    expected = FIRST.copy()
    for i in range(30):
        update = (entropy.words(P, np.uint32).view(np.int32) | 1).astype("<i4")
        slot = entropy.below(K)
        expected[slot] = merged(expected[slot], update, 0.1)
        assert store.merge(STUDY, slot, name(i), 0, update.tobytes(), 0.1) == ("merged", i + 1)
    assert store.all_instances(STUDY).tolist() == expected.tolist()
    assert np.abs(expected).max() > 1 << 24


@pytest.mark.parametrize("part", [0.1, 1.0])
def test_any_bytes_survive(store: ModelStore, part: float) -> None:
    """Among them zeros, line ends and bytes that are no UTF-8, in weights and in ids."""
    odd = np.array([0, LIMIT, -LIMIT, 0x0D0A0D0A, 0x000000FF, -1, 0x0A2A240D], "<i4")
    awkward = [bytes(16), b"\r\n" * 8, b"\xff" * 16, b"\x00" * 15 + b"\n"]
    for i, id_ in enumerate(awkward):
        assert store.merge(STUDY, 2, id_, 0, odd.tobytes(), part) == ("merged", i + 1)
        assert store.merge(STUDY, 2, id_, 0, odd.tobytes(), part) == ("repeated", i + 1)
    if part == 1:
        assert store.draw(STUDY, 2).weights == odd.tobytes()


def test_an_update_that_lies_in_a_buffer_is_copied_out_of_it(store: ModelStore) -> None:
    """A transport may use its buffer again."""
    buffer = bytearray(model(4))
    store.merge(STUDY, 0, name(0), 0, memoryview(buffer), 1.0)
    store.merge(STUDY, 1, name(1), 0, memoryview(buffer), 0.5)
    buffer[:] = bytes(len(buffer))
    assert store.draw(STUDY, 0).weights == model(4)
    assert weights_of(store.draw(STUDY, 1).weights) == [round(7 + i + 0.5 * (4 - 7 - i)) for i in range(P)]


@pytest.mark.parametrize("part", [0.1, 1.0])
def test_a_repeated_update_changes_nothing(store: ModelStore, part: float) -> None:
    store.merge(STUDY, 0, name(1), 3, model(100), part)
    before = store.all_instances(STUDY).tolist()
    assert store.merge(STUDY, 0, name(1), 3, model(100), part) == ("repeated", 1)
    assert store.merge(STUDY, 2, name(1), 3, model(-100), part) == ("repeated", 1)
    assert store.all_instances(STUDY).tolist() == before
    assert store.merge(STUDY, 2, name(2), 3, model(-100), part) == ("merged", 2)


@pytest.mark.parametrize("part", [0.1, 1.0])
def test_many_are_merged_as_one_after_the_other(store: ModelStore, part: float, entropy: SeededEntropy) -> None:
    """Among them retries inside and across batches, stale ones, and instances that change several times."""
    store.create(OTHER, FIRST)
    for study in (STUDY, OTHER):
        store.forget(study, 1)
    arriving = [Arriving(entropy.below(K), name(entropy.below(25)), entropy.below(3), model(1000 * i)) for i in range(60)]
    alone = [store.merge(OTHER, *one, part) for one in arriving]
    together = [became for start in range(0, 60, 15) for became in store.merge_many(STUDY, arriving[start : start + 15], part)]
    assert together == alone
    assert {outcome for outcome, _ in alone} == {"merged", "repeated", "stale"}
    assert store.all_instances(STUDY).tolist() == store.all_instances(OTHER).tolist()
    assert store.n_merged(STUDY) == store.n_merged(OTHER) == alone[-1].n_merged
    assert store.merge_many(STUDY, [], part) == []


def test_names_are_forgotten_by_epochs_and_their_updates_are_stale(store: ModelStore) -> None:
    for epoch in range(5):
        store.merge(STUDY, 0, name(epoch), epoch, model(epoch), 1.0)
    store.forget(STUDY, 3)
    assert store.merge(STUDY, 1, name(2), 2, model(50), 1.0) == ("stale", 5)
    assert store.merge(STUDY, 1, name(99), 2, model(50), 1.0) == ("stale", 5)
    assert store.merge(STUDY, 1, name(99), -1, model(50), 1.0) == ("stale", 5)
    assert store.merge(STUDY, 1, name(3), 3, model(50), 1.0) == ("repeated", 5)
    assert store.merge(STUDY, 1, name(99), 3, model(50), 1.0) == ("merged", 6)
    assert store.all_instances(STUDY).tolist() == [[4] * P, [50] * P, FIRST[2].tolist()]


def test_forgetting_never_goes_back(store: ModelStore) -> None:
    store.forget(STUDY, 7)
    store.forget(STUDY, 2)
    assert store.merge(STUDY, 0, name(0), 6, model(0), 1.0).outcome == "stale"
    assert store.merge(STUDY, 0, name(0), 7, model(0), 1.0).outcome == "merged"


def test_a_name_is_known_from_its_merge_until_it_is_forgotten(store: ModelStore) -> None:
    assert not store.knows(STUDY, name(1), 2)
    assert store.merge(STUDY, 0, name(1), 2, model(1), 1.0) == ("merged", 1)
    assert store.knows(STUDY, name(1), 2)
    assert not store.knows(STUDY, name(1), 1)
    assert not store.knows(STUDY, name(2), 2)
    store.forget(STUDY, 2)
    assert store.knows(STUDY, name(1), 2)
    store.forget(STUDY, 3)
    assert not store.knows(STUDY, name(1), 2)
    assert store.n_merged(STUDY) == 1


def test_averages_follow_one_another(store: ModelStore) -> None:
    first, second = np.linspace(-1e6, 1e6, P), np.linspace(0, 1 / 3, P)
    assert not store.keep_average(STUDY, Average(2, second))
    assert store.keep_average(STUDY, Average(1, first))
    assert not store.keep_average(STUDY, Average(1, second))
    assert not store.keep_average(STUDY, Average(3, second))
    kept = store.average(STUDY)
    assert kept is not None
    assert (kept.n_folds, kept.weights.tolist()) == (1, first.tolist())
    for n in range(2, 300):
        assert store.keep_average(STUDY, Average(n, second))
    kept = store.average(STUDY)
    assert kept is not None
    assert (kept.n_folds, kept.weights.tolist()) == (299, second.tolist())


def test_refusals_are_counted_by_reason(store: ModelStore) -> None:
    for reason in ("spam", "size", "spam", "größe"):
        store.refuse(STUDY, reason)
    assert store.refusals(STUDY) == {"spam": 2, "size": 1, "größe": 1}
    assert store.n_merged(STUDY) == 0


def test_studies_have_nothing_to_do_with_each_other(store: ModelStore) -> None:
    store.create(OTHER, np.zeros((1, 2), np.int32))
    store.merge(STUDY, 0, name(1), 0, model(1), 1.0)
    store.refuse(STUDY, "spam")
    store.keep_average(STUDY, Average(1, np.ones(P)))
    store.forget(STUDY, 1)
    assert (store.shape(OTHER), store.n_merged(OTHER), store.average(OTHER), store.refusals(OTHER)) == ((1, 2), 0, None, {})
    assert store.merge(OTHER, 0, name(1), 0, bytes(8), 1.0) == ("merged", 1)


def test_a_study_that_is_not_here(store: ModelStore) -> None:
    assert store.shape(OTHER) is None
    for call in (
        lambda: store.draw(OTHER, 0),
        lambda: store.merge(OTHER, 0, name(0), 0, model(0), 0.1),
        lambda: store.merge(OTHER, 0, name(0), 0, model(0), 1.0),
        lambda: store.merge_many(OTHER, [Arriving(0, name(0), 0, model(0))], 0.1),
        lambda: store.all_instances(OTHER),
        lambda: store.n_merged(OTHER),
    ):
        with pytest.raises(StoreError, match="STORE-002"):
            call()
    assert store.shape(OTHER) is None


def test_scrubbing_changes_nothing_that_can_be_asked_for(store: ModelStore) -> None:
    for i in range(20):
        store.merge(STUDY, i % K, name(i), i // 10, model(i), 0.5)
    before = store.all_instances(STUDY).tolist()
    assert store.scrub() in ("done", "begun")
    assert store.scrub(5.0) in ("done", "begun")
    assert (store.n_merged(STUDY), store.all_instances(STUDY).tolist()) == (20, before)
    assert store.merge(STUDY, 0, name(3), 0, model(0), 1.0).outcome == "repeated"


@pytest.mark.parametrize("part", [0.1, 1.0])
def test_what_one_merges_another_draws_and_knows(pair: tuple[ModelStore, ModelStore], part: float) -> None:
    one, another = pair
    for i in range(10):
        assert one.merge(STUDY, i % K, name(2 * i), 0, model(i), part).n_merged == 2 * i + 1
        assert another.knows(STUDY, name(2 * i), 0)
        assert another.merge(STUDY, i % K, name(2 * i), 0, model(i), part) == ("repeated", 2 * i + 1)
        assert another.merge(STUDY, i % K, name(2 * i + 1), 0, model(-i), part).n_merged == 2 * i + 2
        assert one.draw(STUDY, i % K) == another.draw(STUDY, i % K)
    assert one.all_instances(STUDY).tolist() == another.all_instances(STUDY).tolist()
    another.forget(STUDY, 1)
    assert one.merge(STUDY, 0, name(0), 0, model(0), part).outcome == "stale"


def test_an_average_is_kept_by_one_of_two(pair: tuple[ModelStore, ModelStore]) -> None:
    one, another = pair
    assert one.keep_average(STUDY, Average(1, np.ones(P)))
    assert not another.keep_average(STUDY, Average(1, np.zeros(P)))
    kept = another.average(STUDY)
    assert kept is not None
    assert kept.weights.tolist() == [1.0] * P


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", [0.5, 1.0])
def test_threads_may_share_a_store(kind: str, part: float, tmp_path: Path, new_database: Callable[[], str]) -> None:
    with address_of(kind, tmp_path, new_database) as address, open_models(None, address) as store:
        store.create(STUDY, np.zeros((1, P), np.int32))
        outcomes: list[str] = []

        def work() -> None:
            for i in range(100):
                outcomes.append(store.merge(STUDY, 0, name(i), 0, model(i), part).outcome)
                assert len(set(weights_of(store.draw(STUDY, 0).weights))) == 1

        threads = [Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (outcomes.count("merged"), outcomes.count("repeated")) == (100, 300)
        assert store.n_merged(STUDY) == 100


@pytest.mark.parametrize("kind", ON_DISK)
@pytest.mark.parametrize("merge", ["blend", "discard"])
def test_a_study_that_is_closed_leaves_the_instances_of_the_moment_alone(
    kind: str, merge: Merge, tmp_path: Path, new_database: Callable[[], str], entropy: SeededEntropy
) -> None:
    """Another process has the store open, so that nothing is cleared away for being the last."""
    schema = Schema([], label=Categorical("opened", ["no", "yes"]), texts=[Text("query", buckets=1_500)])
    params = Params(schema, epsilon=4.0, size=1_000, n_instances=K, merge=merge)
    updates = [entropy.words(params.n_weights, np.uint32).astype("<u4").tobytes() for _ in range(20)]
    with address_of(kind, tmp_path, new_database) as address, open_models(None, address) as store, open_models(None, address) as another:
        serving, versions = Serving(params, STUDY, store, None, entropy), set()
        for i, update in enumerate(updates):
            assert serving.update(name(i), 0, update) == "merged"
            versions |= {row.tobytes()[:200] for row in store.all_instances(STUDY)}
        # The numbers are random: no file can hold them in fewer bytes, and what is not found is not there.
        left = on_disk(address)
        assert sum(version in left for version in versions) >= 20
        assert [update[:200] in left for update in updates] == [merge == "discard"] * 20
        assert serving.close() == "done"
        left, now = on_disk(address), {row.tobytes()[:200] for row in another.all_instances(STUDY)}
        assert {version for version in versions if version in left} == now
        assert another.merge(STUDY, 0, name(3), 0, updates[3], 1.0).outcome == "repeated"


class Counter(Aggregator[Record]):
    """Hands what real devices ask and send to a coordinator's serving."""

    messages = MESSAGES

    def __init__(self, study: bytes, serving: Serving) -> None:
        self.study = study
        self.serving = serving
        self.outcomes: list[str] = []

    def initial(self) -> Record:
        return Record()

    def started(self, state: Record, now: datetime, entropy: Entropy) -> tuple[Record, Effects]:
        return state, ()

    def received(self, state: Record, sender: str, message: Message, now: datetime, entropy: Entropy) -> tuple[Record, Effects]:
        p = self.serving.params.n_weights
        if isinstance(message, Update):
            self.outcomes.append(self.serving.update(message.id, message.epoch, message.weights.expect("int32", p).tobytes()))
            return state, ()
        assert isinstance(message, Draw)
        epoch, weights = self.serving.draw()
        instance = Array.of(np.frombuffer(weights, "<i4").astype(np.int32))
        return state, (Send(sender, Instance(study=self.study, draw=message.id, epoch=epoch, weights=instance)),)


@pytest.mark.parametrize("kind", KINDS)
def test_devices_train_a_model_that_predicts(kind: str, tmp_path: Path, new_database: Callable[[], str], entropy: SeededEntropy) -> None:
    """Devices with ledgers, the study's own filter, serving, a store: only HTTP is left out. All draw before the first comes back."""
    study = Study(
        title="Naps",
        purpose="Who naps?",
        contact="a@example.org",
        protocol="ddml",
        label={"name": "naps", "values": ["no", "yes"]},
        feature=[{"name": "age", "range": [0, 10]}, {"name": "town", "values": ["x", "y", "z"], "missing": False}],
        privacy={"epsilon": 20.0, "n_updates": 2},
        participation={"minimum": 10, "size": 300},
        ddml={"n_instances": 5},
    )
    manifest, n, params = Manifest(study), study.participation.size, params_of(study)
    columns, labels = people(params.schema, n)
    peers = {}
    for i in range(n):
        own = {column: values[i : i + 1] for column, values in columns.items()}
        peers[f"device-{i}"] = DDMLPeer(manifest.digest, params, own, labels[i : i + 1])
    with (
        address_of(kind, tmp_path, new_database) as address,
        open_models(None, address) as store,
        open_serving(manifest, store, entropy, in_flight=n) as serving,
    ):
        counter = Counter(manifest.digest, serving)
        outcome = run_local(counter, peers, entropy)
        assert (outcome.failed, outcome.rejected, outcome.aborted) == ([], [], {})
        n_merged = counter.outcomes.count("merged")
        assert (len(counter.outcomes), store.n_merged(manifest.digest.hex())) == (2 * n, n_merged)
        assert n_merged >= 1.9 * n
        unseen, truth = people(params.schema, 1_000, seed=1)
        assert (serving.model().decide(unseen) == truth).mean() > 0.75
