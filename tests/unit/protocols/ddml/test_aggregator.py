"""The untrusted side: hands out instances, merges what comes back, and ends with a model."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ddml_cases import STUDIES, STUDY, TWO, an_id, an_instance, an_update, in_turn, make, people, some_weights, taken
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array, Message
from shoal.messages.codec import decode, dump, load
from shoal.protocols.base import AGGREGATOR, START, Abort, Effects, Finish, Received, Send, Started, Tick, WakeAt, run_local
from shoal.protocols.ddml.aggregator import DDMLAggregator, Keeping, Learned, Refusals
from shoal.protocols.ddml.averaging import fold
from shoal.protocols.ddml.judging import WINDOW
from shoal.protocols.ddml.merging import LIMIT, merged, part_of, steady_variance
from shoal.protocols.ddml.messages import MESSAGES, Draw, Instance, Update
from shoal.protocols.ddml.params import Params
from shoal.protocols.ddml.peer import DDMLPeer, Drawing
from shoal.protocols.ddml.step import make_step
from toy.garbage import survives_garbage

LAPLACE, WEIGHT = STUDIES["laplace"], STUDIES["weight"]
ENTROPY = SeededEntropy(0)


def opened(params: Params = LAPLACE, seed: int = 1, **options: Any) -> tuple[DDMLAggregator, Keeping]:
    aggregator, _ = make(params, 0, **options)
    state, effects = aggregator.step(aggregator.initial(), Started(), START, SeededEntropy(seed))
    assert effects == (WakeAt(START + aggregator.patience),)
    return aggregator, state


def give(aggregator: DDMLAggregator, state: Keeping, message: Message, seed: int = 1) -> tuple[Keeping, Effects]:
    return aggregator.step(state, Received("?1", message), START, SeededEntropy(seed))


def drawn(aggregator: DDMLAggregator, state: Keeping, seed: int = 1) -> Instance:
    after, (send,) = aggregator.step(state, Received("peer-3", Draw(study=STUDY, id=an_id(seed))), START, SeededEntropy(seed))
    assert after == state, "who drew is not remembered"
    assert isinstance(send, Send) and send.to == "peer-3" and isinstance(send.message, Instance)
    return send.message


def test_the_instances_begin_with_the_spread_that_they_will_keep() -> None:
    params = replace(LAPLACE, n_instances=200)
    _, state = opened(params)
    variance = steady_variance(200, 1.0) * make_step(params).deviation ** 2
    assert state.matrix().shape == (200, params.n_weights)
    assert 0.85 < state.matrix().var() / variance < 1.15
    assert (opened(replace(LAPLACE, n_instances=1))[1].matrix() == 0).all()


def test_a_draw_is_answered_with_an_instance_for_that_draw_each_as_often_as_any_other() -> None:
    aggregator, state = opened()
    seen: dict[bytes, int] = {}
    for seed in range(500):
        instance = drawn(aggregator, state, seed)
        assert (instance.draw, instance.epoch) == (an_id(seed), 0)
        seen[instance.weights.data] = seen.get(instance.weights.data, 0) + 1
    assert set(seen) == {one.data for one in state.instances}
    assert min(seen.values()) > 50


@pytest.mark.parametrize("params", [LAPLACE, WEIGHT], ids=["discard", "blend"])
def test_an_update_enters_one_instance_and_leaves_the_others_as_they_were(params: Params) -> None:
    aggregator, state = opened(params)
    slots = set()
    for seed in range(60):
        after, effects = give(aggregator, state, an_update(params, seed), seed)
        changed = [i for i, (old, new) in enumerate(zip(state.instances, after.instances, strict=True)) if old != new]
        (slot,) = changed
        slots.add(slot)
        expected = merged(state.matrix()[slot], some_weights(params, seed), part_of(params.merge))
        assert after.matrix()[slot].tolist() == expected.tolist()
        assert all(old is new for i, (old, new) in enumerate(zip(state.instances, after.instances, strict=True)) if i != slot)
        assert (after.n_merged, effects) == (1, ())
    assert slots == set(range(params.n_instances))


def test_discarding_keeps_the_update_itself() -> None:
    aggregator, state = opened()
    after, _ = give(aggregator, state, an_update(LAPLACE, 4))
    assert an_update(LAPLACE, 4).weights in after.instances


def test_the_average_is_folded_every_k_updates_and_is_what_predicts() -> None:
    aggregator, state = opened(WEIGHT)
    average = None
    for n in range(1, 13):
        state, _ = give(aggregator, state, an_update(WEIGHT, n), n)
        mean = state.matrix().mean(axis=0)
        if n % 3 == 0:
            average = mean if average is None else fold(average, mean, n // 3)
        assert (state.average is None) == (n < 3)
        assert state.learned().tolist() == (mean if average is None else average).tolist()
    _, (ending,) = aggregator.ticked(state, state.deadline, ENTROPY)
    assert isinstance(ending, Finish) and isinstance(ending.result, Learned)
    assert average is not None
    assert ending.result.model.weights.ravel().tolist() == (average * 2.0**-WEIGHT.fraction_bits).tolist()


def test_without_averaging_the_mean_of_the_instances_predicts() -> None:
    aggregator, state = opened(LAPLACE)
    for n in range(11):
        state, _ = give(aggregator, state, an_update(LAPLACE, n), n)
    assert state.average is None
    _, (ending,) = aggregator.ticked(state, state.deadline, ENTROPY)
    assert isinstance(ending, Finish) and isinstance(ending.result, Learned)
    learned = ending.result
    assert learned.instances.tolist() == state.matrix().tolist()
    assert np.allclose(learned.model.weights.ravel() * 2**LAPLACE.fraction_bits, state.matrix().mean(axis=0))
    assert (learned.n_merged, learned.refused) == (11, Refusals())


def test_the_epoch_is_counted_in_merged_updates() -> None:
    aggregator, state = opened()
    assert LAPLACE.epoch_updates == 1000
    for n_merged, epoch in ((999, 0), (1000, 1), (12_345, 12)):
        assert drawn(aggregator, state.replace(n_merged=n_merged)).epoch == epoch


def test_a_stale_update_is_dropped_and_counted_and_one_from_the_future_blamed() -> None:
    aggregator, state = opened()
    state = state.replace(n_merged=30_000)
    for epoch in (29 - WINDOW, 0):
        after, effects = give(aggregator, state, an_update(LAPLACE, epoch=epoch))
        assert after == state.replace(refused=Refusals(stale=1))
        assert effects == ()
    for epoch in (30 - WINDOW, 30):
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
        "out of range": np.where(np.arange(weights.size) == 3, -LIMIT - 1, weights).astype(np.int32),
    }


@pytest.mark.parametrize("fault", wrong_weights())
def test_an_update_of_another_size_kind_or_range_is_blamed_on_its_sender(fault: str) -> None:
    aggregator, state = opened()
    for at in (state, state.replace(is_over=True)):
        with pytest.raises(RemoteProtocolError) as caught:
            give(aggregator, at, an_update(LAPLACE, weights=wrong_weights()[fault]))
        assert caught.value.code == "MSG-005"


class Strict:
    """Refuses an update whose first weight is above all instances'; and writes down what it was shown."""

    def __init__(self) -> None:
        self.shown: list[tuple[int, ...]] = []

    def judge_all(self, weights: npt.NDArray[np.int32], instances: npt.NDArray[np.int32], epoch: int) -> str | None:
        self.shown.append((*weights.shape, *instances.shape, epoch))
        return "too large" if weights[0] > instances[:, 0].max() else None


def test_what_the_filter_refuses_is_dropped_and_counted() -> None:
    judge = Strict()
    aggregator, state = opened(judge=judge)
    low, high = (np.full(LAPLACE.n_weights, end, np.int32) for end in (-LIMIT, LIMIT))
    after, _ = give(aggregator, state, an_update(LAPLACE, 1, weights=high))
    assert after == state.replace(refused=Refusals(spam=1))
    after, _ = give(aggregator, after.replace(n_merged=3000), an_update(LAPLACE, 2, epoch=2, weights=low))
    assert (after.n_merged, after.refused.spam) == (3001, 1)
    assert judge.shown == [(6, 5, 6, 0), (6, 5, 6, 2)]
    give(aggregator, after.replace(n_merged=30_000), an_update(LAPLACE, 3))
    assert len(judge.shown) == 2, "a stale update is not judged"


def test_it_ends_after_as_many_updates_as_are_expected_and_is_quiet_from_then_on() -> None:
    aggregator, state = opened(n_expected=3)
    for n in range(3):
        state, effects = give(aggregator, state, an_update(LAPLACE, n), n)
    (ending,) = effects
    assert isinstance(ending, Finish) and isinstance(ending.result, Learned) and ending.result.n_merged == 3
    assert state.is_over
    after, effects = give(aggregator, state, an_update(LAPLACE, 7))
    assert (after, effects) == (state.replace(refused=Refusals(over=1)), ())
    assert give(aggregator, state, Draw(study=STUDY, id=an_id(1))) == (state, ()), "nobody spends on a model that is finished"
    assert aggregator.step(state, Tick(), state.deadline, ENTROPY) == (state, ())


def test_by_default_it_expects_what_the_study_declares() -> None:
    assert DDMLAggregator(STUDY, LAPLACE).n_expected == 1000


def test_it_ends_when_time_is_up_and_not_before() -> None:
    aggregator, state = opened(patience=timedelta(hours=2))
    state, _ = give(aggregator, state, an_update(LAPLACE))
    assert aggregator.ticked(state, START + timedelta(hours=1), ENTROPY) == (state, ())
    after, (ending,) = aggregator.ticked(state, START + timedelta(hours=2), ENTROPY)
    assert isinstance(ending, Finish) and after.is_over


def test_the_minimum_is_exact_and_too_few_updates_are_said_to_be_spent() -> None:
    for minimum, kind in ((2, Finish), (3, Abort)):
        aggregator, state = opened(minimum=minimum)
        for n in range(2):
            state, _ = give(aggregator, state, an_update(LAPLACE, n))
        _, (ending,) = aggregator.ticked(state, state.deadline, ENTROPY)
        assert type(ending) is kind
    assert isinstance(ending, Abort)
    assert ending.error.code == "DDML-002"
    assert "2 updates" in ending.error.what and "spent" in str(ending.error.why)


def test_a_state_comes_back_from_its_bytes() -> None:
    aggregator, state = opened(WEIGHT)
    for n in range(5):
        state, _ = give(aggregator, state, an_update(WEIGHT, n), n)
    state = state.refuse("stale").refuse("spam").refuse("spam")
    again = load(dump(state), Keeping)
    assert again == state
    assert again.learned().tolist() == state.learned().tolist()
    assert again.refused == Refusals(stale=1, spam=2)


def test_nothing_is_taken_before_the_start_and_an_instance_never() -> None:
    aggregator, state = opened()
    for message in (Draw(study=STUDY, id=an_id(0)), an_update(LAPLACE)):
        with pytest.raises(RemoteProtocolError) as caught:
            give(aggregator, aggregator.initial(), message)
        assert caught.value.code == "PROTO-003"
    with pytest.raises(RemoteProtocolError) as caught:
        give(aggregator, state, an_instance(LAPLACE, an_id(0)))
    assert caught.value.code == "PROTO-003"


class Silent(DDMLPeer):
    """Draws, and never answers."""

    def received(self, state: Drawing, *rest: object) -> tuple[Drawing, Effects]:
        return state, ()


class Cheat(DDMLPeer):
    """Sends a model of another size."""

    def answer(self, state: Drawing, question: str, entropy: Any) -> Update:
        update = super().answer(state, question, entropy)
        assert isinstance(update, Update)
        return update.replace(weights=Array.of(np.zeros(3, np.int32)))


def test_who_drops_out_is_not_waited_for_and_who_cheats_is_rejected_without_a_name() -> None:
    aggregator, peers = make(LAPLACE, 20)
    others = {"silent": Silent(STUDY, LAPLACE, *people(TWO, 1)), "cheat": Cheat(STUDY, LAPLACE, *people(TWO, 1))}
    outcome = run_local(aggregator, {**peers, **others}, SeededEntropy(1))
    learned = outcome.results[AGGREGATOR]
    assert isinstance(learned, Learned) and learned.n_merged == 40
    assert [rejected.error.code for rejected in outcome.rejected] == ["MSG-005"] * 2
    assert all(rejected.sender.startswith("?") for rejected in outcome.rejected)
    assert not outcome.failed and not outcome.aborted


def test_no_garbage_does_more_than_to_be_rejected() -> None:
    aggregator, peers = make(WEIGHT, 4)
    outcome = run_local(aggregator, peers, SeededEntropy(1))
    messages = [decode(payload, MESSAGES, STUDY) for payload in dict.fromkeys(sent.payload for sent in outcome.sent)]
    samples = [next(message for message in messages if isinstance(message, kind)) for kind in (Draw, Instance, Update)]
    _, state = opened(WEIGHT)
    aggregator.judge = Strict()
    # Draws are answered: the driver of this check has no peer of that name to send to, and need not.
    states = (aggregator.initial(), state, state.replace(n_merged=50_000), outcome.states[AGGREGATOR])
    assert survives_garbage(aggregator, states, samples, "?7") > 12


@pytest.mark.untraced
@pytest.mark.parametrize("name", ["closest", "number"])
def test_devices_that_come_one_after_another_teach_the_model(name: str) -> None:
    params = STUDIES[name]
    aggregator, peers = make(params, 250)
    outcome = in_turn(aggregator, peers, SeededEntropy(3))
    learned = outcome.results[AGGREGATOR]
    assert isinstance(learned, Learned) and taken(outcome.states[AGGREGATOR]) == 250 * params.n_updates
    columns, labels = people(params.schema, 2000, 9)
    if name == "number":
        assert np.mean((learned.model.predict(columns) - labels) ** 2) < 0.4 * labels.var()
    else:
        assert (learned.model.decide(columns) == labels).mean() > 0.85


def test_a_study_without_noise_can_be_opened_but_starts_at_zero() -> None:
    bare = replace(LAPLACE, epsilon=float("inf"))
    _, state = opened(bare)
    assert (state.matrix() == 0).all()
