"""The untrusted side: sends instances, merges updates, and ends with a model."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array, Message
from shoal.messages.codec import decode, dump, load
from shoal.protocols.base import (
    AGGREGATOR,
    START,
    Abort,
    Effects,
    Finish,
    Received,
    Send,
    Started,
    Tick,
    WakeAt,
    run_local,
)
from shoal.protocols.ddml.aggregator import (
    DDMLAggregator,
    DDMLAggregatorResult,
    DDMLAggregatorState,
    RejectedUpdateCounts,
)
from shoal.protocols.ddml.merging import (
    EPOCH_WINDOW,
    MAX_WEIGHT,
    find_blend_factor,
    merge_update,
    steady_variance,
    update_average,
)
from shoal.protocols.ddml.messages import MESSAGES, DDMLDraw, DDMLInstance, DDMLUpdate
from shoal.protocols.ddml.noisy_step import make_step
from shoal.protocols.ddml.params import DDMLParams
from shoal.protocols.ddml.peer import DDMLPeer, DDMLPeerState
from tests.support.ddml import (
    STUDIES,
    STUDY,
    TWO,
    an_id,
    an_instance,
    an_update,
    in_turn,
    make,
    people,
    some_weights,
    taken,
)
from tests.support.toy.garbage import survives_garbage

LAPLACE, WEIGHT = STUDIES["laplace"], STUDIES["weight"]
ENTROPY = SeededEntropy(0)


def opened(
    params: DDMLParams = LAPLACE, seed: int = 1, **options: Any
) -> tuple[DDMLAggregator, DDMLAggregatorState]:
    aggregator, _ = make(params, 0, **options)
    state, effects = aggregator.step(
        aggregator.initial_state(), Started(), START, SeededEntropy(seed)
    )
    assert effects == (WakeAt(START + aggregator.phase_timeout),)
    return aggregator, state


def give(
    aggregator: DDMLAggregator, state: DDMLAggregatorState, message: Message, seed: int = 1
) -> tuple[DDMLAggregatorState, Effects]:
    return aggregator.step(state, Received("?1", message), START, SeededEntropy(seed))


def drawn(aggregator: DDMLAggregator, state: DDMLAggregatorState, seed: int = 1) -> DDMLInstance:
    after, (send,) = aggregator.step(
        state, Received("peer-3", DDMLDraw(study=STUDY, id=an_id(seed))), START, SeededEntropy(seed)
    )
    assert after == state, "who drew is not remembered"
    assert isinstance(send, Send) and send.to == "peer-3" and isinstance(send.message, DDMLInstance)
    return send.message


def test_instances_begin_with_steady_variance() -> None:
    params = replace(LAPLACE, n_instances=200)
    _, state = opened(params)
    variance = steady_variance(200, 1.0) * make_step(params).deviation ** 2
    assert state.to_matrix().shape == (200, params.n_weights)
    assert 0.85 < state.to_matrix().var() / variance < 1.15
    assert (opened(replace(LAPLACE, n_instances=1))[1].to_matrix() == 0).all()


def test_draw_returns_uniform_instance_for_its_draw() -> None:
    aggregator, state = opened()
    seen: dict[bytes, int] = {}
    for seed in range(500):
        instance = drawn(aggregator, state, seed)
        assert (instance.draw, instance.epoch) == (an_id(seed), 0)
        seen[instance.weights.data] = seen.get(instance.weights.data, 0) + 1
    assert set(seen) == {one.data for one in state.instances}
    assert min(seen.values()) > 50


@pytest.mark.parametrize("params", [LAPLACE, WEIGHT], ids=["discard", "blend"])
def test_update_changes_one_instance(
    params: DDMLParams,
) -> None:
    aggregator, state = opened(params)
    slots = set()
    for seed in range(60):
        after, effects = give(aggregator, state, an_update(params, seed), seed)
        changed = [
            i
            for i, (old, new) in enumerate(zip(state.instances, after.instances, strict=True))
            if old != new
        ]
        (slot,) = changed
        slots.add(slot)
        expected = merge_update(
            state.to_matrix()[slot], some_weights(params, seed), find_blend_factor(params.merge)
        )
        assert after.to_matrix()[slot].tolist() == expected.tolist()
        assert all(
            old is new
            for i, (old, new) in enumerate(zip(state.instances, after.instances, strict=True))
            if i != slot
        )
        assert (after.n_merged, effects) == (1, ())
    assert slots == set(range(params.n_instances))


def test_discard_stores_update_itself() -> None:
    aggregator, state = opened()
    after, _ = give(aggregator, state, an_update(LAPLACE, 4))
    assert an_update(LAPLACE, 4).weights in after.instances


def test_average_is_folded_every_k_updates_and_predicts() -> None:
    aggregator, state = opened(WEIGHT)
    average = None
    for n in range(1, 13):
        state, _ = give(aggregator, state, an_update(WEIGHT, n), n)
        mean = state.to_matrix().mean(axis=0)
        if n % 3 == 0:
            average = mean if average is None else update_average(average, mean, n // 3)
        assert (state.average is None) == (n < 3)
        assert state.compute_weights().tolist() == (mean if average is None else average).tolist()
    _, (ending,) = aggregator.on_tick(state, state.deadline, ENTROPY)
    assert isinstance(ending, Finish) and isinstance(ending.result, DDMLAggregatorResult)
    assert average is not None
    assert (
        ending.result.model.weights.ravel().tolist()
        == (average * 2.0**-WEIGHT.fraction_bits).tolist()
    )


def test_mean_of_instances_predicts_without_averaging() -> None:
    aggregator, state = opened(LAPLACE)
    for n in range(11):
        state, _ = give(aggregator, state, an_update(LAPLACE, n), n)
    assert state.average is None
    _, (ending,) = aggregator.on_tick(state, state.deadline, ENTROPY)
    assert isinstance(ending, Finish) and isinstance(ending.result, DDMLAggregatorResult)
    learned = ending.result
    assert learned.instances.tolist() == state.to_matrix().tolist()
    assert np.allclose(
        learned.model.weights.ravel() * 2**LAPLACE.fraction_bits, state.to_matrix().mean(axis=0)
    )
    assert (learned.n_merged, learned.refused) == (11, RejectedUpdateCounts())


def test_epoch_counts_merged_updates() -> None:
    aggregator, state = opened()
    assert LAPLACE.epoch_updates == 1000
    for n_merged, epoch in ((999, 0), (1000, 1), (12_345, 12)):
        assert drawn(aggregator, state.replace(n_merged=n_merged)).epoch == epoch


def test_stale_update_is_counted_and_future_update_blamed() -> None:
    aggregator, state = opened()
    state = state.replace(n_merged=30_000)
    for epoch in (29 - EPOCH_WINDOW, 0):
        after, effects = give(aggregator, state, an_update(LAPLACE, epoch=epoch))
        assert after == state.replace(refused=RejectedUpdateCounts(stale=1))
        assert effects == ()
    for epoch in (30 - EPOCH_WINDOW, 30):
        assert give(aggregator, state, an_update(LAPLACE, epoch=epoch))[0].n_merged == 30_001
    for epoch in (31, (1 << 63) - 1):
        with pytest.raises(RemoteProtocolError) as caught:
            give(aggregator, state, an_update(LAPLACE, epoch=epoch))
        assert caught.value.code == "DDML-001"


def wrong_weights() -> dict[str, npt.NDArray[Any]]:
    weights = some_weights(LAPLACE)
    return {
        "one too few": weights[1:],
        "one too many": np.append(weights, weights[:1]),
        "64 bits": weights.astype(np.int64),
        "out of range": np.where(np.arange(weights.size) == 3, -MAX_WEIGHT - 1, weights).astype(
            np.int32
        ),
    }


@pytest.mark.parametrize("fault", wrong_weights())
def test_update_of_wrong_size_type_or_range_blames_sender(fault: str) -> None:
    aggregator, state = opened()
    for at in (state, state.replace(is_over=True)):
        with pytest.raises(RemoteProtocolError) as caught:
            give(aggregator, at, an_update(LAPLACE, weights=wrong_weights()[fault]))
        assert caught.value.code == "MSG-005"


class StrictFilter:
    """A filter that rejects a first weight above the mean, and records the shapes it is given."""

    def __init__(self) -> None:
        self.shown: list[tuple[int, ...]] = []

    def make_test(
        self, centre: npt.NDArray[np.float64], deviation: npt.NDArray[np.float64]
    ) -> StrictFilter:
        self.centre, self.deviation = centre, deviation
        return self

    def find_fault(self, weights: npt.NDArray[np.int32], epoch: int) -> str | None:
        self.shown.append((*weights.shape, *self.centre.shape, *self.deviation.shape, epoch))
        return "too large" if weights[0] > self.centre[0] else None


def test_spam_is_dropped_and_counted() -> None:
    spam_filter = StrictFilter()
    aggregator, state = opened(spam_filter=spam_filter)
    low, high = (np.full(LAPLACE.n_weights, end, np.int32) for end in (-MAX_WEIGHT, MAX_WEIGHT))
    after, _ = give(aggregator, state, an_update(LAPLACE, 1, weights=high))
    assert after == state.replace(refused=RejectedUpdateCounts(spam=1))
    after, _ = give(
        aggregator, after.replace(n_merged=3000), an_update(LAPLACE, 2, epoch=2, weights=low)
    )
    assert (after.n_merged, after.refused.spam) == (3001, 1)
    assert spam_filter.shown == [(6, 6, 6, 0), (6, 6, 6, 2)]
    give(aggregator, after.replace(n_merged=30_000), an_update(LAPLACE, 3))
    assert len(spam_filter.shown) == 2, "a stale update is not judged"


def test_aggregator_ends_after_expected_updates_and_ignores_later_ones() -> None:
    aggregator, state = opened(n_expected=3)
    for n in range(3):
        state, effects = give(aggregator, state, an_update(LAPLACE, n), n)
    (ending,) = effects
    assert (
        isinstance(ending, Finish)
        and isinstance(ending.result, DDMLAggregatorResult)
        and ending.result.n_merged == 3
    )
    assert state.is_over
    after, effects = give(aggregator, state, an_update(LAPLACE, 7))
    assert (after, effects) == (state.replace(refused=RejectedUpdateCounts(over=1)), ())
    assert give(aggregator, state, DDMLDraw(study=STUDY, id=an_id(1))) == (state, ()), (
        "nobody spends on a model that is finished"
    )
    assert aggregator.step(state, Tick(), state.deadline, ENTROPY) == (state, ())


def test_expected_updates_default_to_study() -> None:
    assert DDMLAggregator(STUDY, LAPLACE).n_expected == 1000


def test_aggregator_ends_at_deadline() -> None:
    aggregator, state = opened(phase_timeout=timedelta(hours=2))
    state, _ = give(aggregator, state, an_update(LAPLACE))
    assert aggregator.on_tick(state, START + timedelta(hours=1), ENTROPY) == (state, ())
    after, (ending,) = aggregator.on_tick(state, START + timedelta(hours=2), ENTROPY)
    assert isinstance(ending, Finish) and after.is_over


def test_minimum_is_exact_and_abort_states_that_budget_is_spent() -> None:
    for minimum, kind in ((2, Finish), (3, Abort)):
        aggregator, state = opened(minimum=minimum)
        for n in range(2):
            state, _ = give(aggregator, state, an_update(LAPLACE, n))
        _, (ending,) = aggregator.on_tick(state, state.deadline, ENTROPY)
        assert type(ending) is kind
    assert isinstance(ending, Abort)
    assert ending.error.code == "DDML-002"
    assert "2 updates" in ending.error.what and "spent" in str(ending.error.why)


def test_aggregator_state_survives_dump_and_load() -> None:
    aggregator, state = opened(WEIGHT)
    for n in range(5):
        state, _ = give(aggregator, state, an_update(WEIGHT, n), n)
    state = state.count_rejection("stale").count_rejection("spam").count_rejection("spam")
    again = load(dump(state), DDMLAggregatorState)
    assert again == state
    assert again.compute_weights().tolist() == state.compute_weights().tolist()
    assert again.refused == RejectedUpdateCounts(stale=1, spam=2)


def test_aggregator_rejects_messages_before_start_and_instances() -> None:
    aggregator, state = opened()
    for message in (DDMLDraw(study=STUDY, id=an_id(0)), an_update(LAPLACE)):
        with pytest.raises(RemoteProtocolError) as caught:
            give(aggregator, aggregator.initial_state(), message)
        assert caught.value.code == "PROTO-003"
    with pytest.raises(RemoteProtocolError) as caught:
        give(aggregator, state, an_instance(LAPLACE, an_id(0)))
    assert caught.value.code == "PROTO-003"


class Silent(DDMLPeer):
    """Draws, and never answers."""

    def on_message(self, state: DDMLPeerState, *rest: object) -> tuple[DDMLPeerState, Effects]:
        return state, ()


class Cheat(DDMLPeer):
    """Sends a model of another size."""

    def answer(self, state: DDMLPeerState, question: str, entropy: Any) -> DDMLUpdate:
        update = super().answer(state, question, entropy)
        assert isinstance(update, DDMLUpdate)
        return update.replace(weights=Array.from_values(np.zeros(3, np.int32)))


def test_aggregator_ignores_dropouts_and_rejects_cheaters_anonymously() -> None:
    aggregator, peers = make(LAPLACE, 20)
    others = {
        "silent": Silent(STUDY, LAPLACE, *people(TWO, 1)),
        "cheat": Cheat(STUDY, LAPLACE, *people(TWO, 1)),
    }
    outcome = run_local(aggregator, {**peers, **others}, SeededEntropy(1))
    learned = outcome.results[AGGREGATOR]
    assert isinstance(learned, DDMLAggregatorResult) and learned.n_merged == 40
    assert [rejected.error.code for rejected in outcome.rejected] == ["MSG-005"] * 2
    assert all(rejected.sender.startswith("?") for rejected in outcome.rejected)
    assert not outcome.failed and not outcome.aborted


def test_aggregator_only_rejects_garbage() -> None:
    aggregator, peers = make(WEIGHT, 4)
    outcome = run_local(aggregator, peers, SeededEntropy(1))
    messages = [
        decode(payload, MESSAGES, STUDY)
        for payload in dict.fromkeys(sent.payload for sent in outcome.sent)
    ]
    samples = [
        next(message for message in messages if isinstance(message, kind))
        for kind in (DDMLDraw, DDMLInstance, DDMLUpdate)
    ]
    _, state = opened(WEIGHT)
    aggregator.spam_filter = StrictFilter()
    # Draws are answered: the driver of this check has no peer of that name to send to, and need
    # not.
    states = (
        aggregator.initial_state(),
        state,
        state.replace(n_merged=50_000),
        outcome.states[AGGREGATOR],
    )
    assert survives_garbage(aggregator, states, samples, "?7") > 12


@pytest.mark.untraced
@pytest.mark.parametrize("name", ["closest", "number"])
def test_sequential_devices_train_model(name: str) -> None:
    params = STUDIES[name]
    aggregator, peers = make(params, 250)
    outcome = in_turn(aggregator, peers, SeededEntropy(3))
    learned = outcome.results[AGGREGATOR]
    assert (
        isinstance(learned, DDMLAggregatorResult)
        and taken(outcome.states[AGGREGATOR]) == 250 * params.n_updates
    )
    columns, labels = people(params.schema, 2000, 9)
    if name == "number":
        assert np.mean((learned.model.predict(columns) - labels) ** 2) < 0.4 * labels.var()
    else:
        assert (learned.model.decide(columns) == labels).mean() > 0.85


def test_noiseless_study_starts_at_zero() -> None:
    bare = replace(LAPLACE, epsilon=float("inf"))
    _, state = opened(bare)
    assert (state.to_matrix() == 0).all()
