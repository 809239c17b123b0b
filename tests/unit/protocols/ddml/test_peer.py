"""The peer answers each draw once at the study's price, and stops if its ledger refuses."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from shoal.data.schema import Numeric
from shoal.entropy import SeededEntropy
from shoal.errors import BudgetError, LocalProtocolError, MechanismError, RemoteProtocolError
from shoal.messages.base import Array, Message
from shoal.messages.codec import decode, dump, dumps, load, loads
from shoal.protocols.base import (
    AGGREGATOR,
    START,
    Account,
    Finish,
    Input,
    MemoryLedger,
    OutgoingMessage,
    Received,
    Refused,
    Started,
    run_input,
)
from shoal.protocols.ddml.design_matrix import InputDesign
from shoal.protocols.ddml.merging import EPOCH_WINDOW, MAX_WEIGHT, add_step
from shoal.protocols.ddml.messages import ID_BYTES, DDMLDraw, DDMLUpdate
from shoal.protocols.ddml.noisy_step import AdditiveStep, make_step, price_update
from shoal.protocols.ddml.params import DDMLParams
from shoal.protocols.ddml.peer import DDMLPeer, DDMLPeerState, DeviceRows, TrainingRows
from tests.support.ddml import (
    STUDIES,
    STUDY,
    TWO,
    an_id,
    an_instance,
    an_update,
    compute_price,
    make,
    people,
    rows,
    some_weights,
)
from tests.support.machines import spent
from tests.support.toy.garbage import survives_garbage


def a_peer(name: str = "laplace", n_rows: int = 1, **changes: Any) -> DDMLPeer:
    params = replace(STUDIES[name], **changes)
    return DDMLPeer(STUDY, params, *people(params.schema, n_rows))


def give(
    peer: DDMLPeer,
    state: DDMLPeerState,
    given: Input | Message,
    ledger: MemoryLedger,
    seed: int = 1,
) -> tuple[DDMLPeerState, list[Message], list[object]]:
    """What a peer sends, and how it ends, when it is given something."""
    given = Received(AGGREGATOR, given) if isinstance(given, Message) else given
    account = Account(ledger, STUDY, "rows", AGGREGATOR, "a test")
    state, work = run_input(peer, state, given, START, SeededEntropy(seed), account)
    sent = [
        decode(item.payload, peer.messages, STUDY)
        for item in work
        if isinstance(item, OutgoingMessage)
    ]
    return state, sent, [item.result for item in work if isinstance(item, Finish)]


def begun(peer: DDMLPeer, ledger: MemoryLedger) -> tuple[DDMLPeerState, DDMLDraw]:
    state, sent, ends = give(peer, peer.initial_state(), Started(), ledger)
    (draw,) = sent
    assert isinstance(draw, DDMLDraw) and ends == []
    return state, draw


@pytest.mark.parametrize("name", STUDIES)
def test_peer_draws_and_answers_until_all_updates_are_sent(
    name: str,
) -> None:
    peer, ledger = a_peer(name, 3), MemoryLedger()
    state, draw = begun(peer, ledger)
    drawn = {draw.id}
    n = peer.params.n_updates
    for number in range(n):
        instance = an_instance(peer.params, draw.id, seed=number)
        state, sent, ends = give(peer, state, instance, ledger, number + 2)
        update = sent[0]
        assert isinstance(update, DDMLUpdate)
        assert update.epoch == instance.epoch and update.id not in drawn
        assert update.weights.data != instance.weights.data
        assert ends == ([n] if number == n - 1 else [])
        if number < n - 1:
            assert isinstance(sent[1], DDMLDraw)
            draw = sent[1]
            drawn.add(draw.id)
        assert len(sent) == (1 if number == n - 1 else 2)
    assert len(drawn) == n
    assert [question for _, question in ledger.entries] == [
        f"update/{number}" for number in range(n)
    ]
    assert {entry.release.event for entry in ledger.entries.values()} == {price_update(peer.params)}
    assert (state.draw, state.instance) == (None, None)


def test_peer_without_rows_finishes_without_draw() -> None:
    peer, ledger = a_peer(n_rows=0), MemoryLedger()
    state, sent, ends = give(peer, peer.initial_state(), Started(), ledger)
    assert (sent, ends) == ([], [0])
    assert give(peer, state, an_instance(peer.params, an_id(1)), ledger) == (state, [], [])
    assert not ledger.entries


def test_update_is_instance_after_noisy_step() -> None:
    """By the same stream of randomness: the rows are all read, and then the noise is drawn."""
    peer = a_peer("laplace", batch_size=3, n_rows=3)
    params = peer.params
    state = DDMLPeerState(update=an_id(9), instance=an_instance(params, an_id(0), epoch=2))
    update = peer.answer(state, "update/0", SeededEntropy(5))
    assert isinstance(update, DDMLUpdate)
    held = TrainingRows.from_columns(params, *people(TWO, 3))
    weights = some_weights(params)
    step = make_step(params, 2).draw(held.gradient(params, weights), SeededEntropy(5))
    assert (
        update.weights.expect("int32", params.n_weights).tolist()
        == add_step(weights, step).tolist()
    )
    assert update.epoch == 2


def test_batch_reads_at_most_batch_size_rows_anew() -> None:
    """By the same stream: first the rows are drawn, then the noise."""
    peer = a_peer("weight", 40)
    params, weights = peer.params, some_weights(peer.params)
    held = DeviceRows(params, *people(TWO, 40))
    seen = set()
    for seed in range(5):
        update = peer.answer(
            DDMLPeerState(update=an_id(9), instance=an_instance(params, an_id(0))),
            "update/0",
            SeededEntropy(seed),
        )
        assert isinstance(update, DDMLUpdate)
        entropy = SeededEntropy(seed)
        batch = held.draw_batch(entropy)
        assert len(batch) == 2
        step = make_step(params).draw(batch.gradient(params, weights), entropy)
        assert (
            update.weights.expect("int32", params.n_weights).tolist()
            == add_step(weights, step).tolist()
        )
        seen.add(batch.inputs.values.tobytes())
    assert len(seen) > 1


@pytest.mark.parametrize("name", STUDIES)
def test_inputs_are_made_for_one_batch_only(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    true = InputDesign.make_inputs

    def counting(self: InputDesign, columns: Any) -> Any:
        found = true(self, columns)
        made.append(len(found))
        return found

    monkeypatch.setattr(InputDesign, "make_inputs", counting)
    peer, ledger = a_peer(name, 12), MemoryLedger()
    state, draw = begun(peer, ledger)
    assert made == []
    give(peer, state, an_instance(peer.params, draw.id), ledger)
    assert made == [peer.params.batch_size]


EXTREMES = [-MAX_WEIGHT, -1, 0, 1, MAX_WEIGHT]


@pytest.mark.parametrize("name", STUDIES)
def test_peer_answers_every_instance_with_any_batch(name: str) -> None:
    """Rows at the ends of all ranges, and instances at the ends of theirs: nothing fails once a
    device has drawn.
    """
    params = replace(STUDIES[name], batch_size=3)
    columns, labels = people(params.schema, 3)
    for feature in params.schema.features:
        if isinstance(feature, Numeric):
            columns[feature.name] = np.array(
                [feature.low, feature.high, math.nan if feature.missing else feature.low]
            )
    for text in params.schema.texts:
        columns[text.name][:] = [
            np.array([], np.int64),
            np.arange(text.buckets),
            np.array([text.buckets - 1]),
        ]
    peer = DDMLPeer(STUDY, params, columns, labels)
    rng = np.random.default_rng(1)
    for number in range(20):
        weights = rng.choice(EXTREMES, params.n_weights).astype(np.int32)
        instance = an_instance(params, an_id(0), epoch=number).replace(
            weights=Array.from_values(weights)
        )
        update = peer.answer(
            DDMLPeerState(update=an_id(9), instance=instance), "update/0", SeededEntropy(number)
        )
        assert isinstance(update, DDMLUpdate)
        assert (
            abs(update.weights.expect("int32", params.n_weights).astype(np.int64)).max()
            <= MAX_WEIGHT
        )


def test_updates_on_same_instance_and_rows_differ() -> None:
    peer = a_peer()
    state = DDMLPeerState(update=an_id(9), instance=an_instance(peer.params, an_id(0)))
    first, second = (peer.answer(state, "update/0", SeededEntropy(seed)) for seed in (1, 2))
    assert isinstance(first, DDMLUpdate) and isinstance(second, DDMLUpdate)
    assert first.weights != second.weights


def test_random_bits_of_answer_are_for_the_weights_alone() -> None:
    """Other fields follow from the state: an id must not show the random bits of the noise."""
    peer = a_peer()
    state = DDMLPeerState(update=an_id(9), instance=an_instance(peer.params, an_id(0)))
    updates = [peer.answer(state, "update/0", SeededEntropy(seed)) for seed in range(5)]
    assert {update.submission for update in updates} == {an_id(9)}


def test_peer_state_of_earlier_version_can_be_read() -> None:
    """It has no id of the next update, which is drawn with the next instance."""
    peer, ledger = a_peer(), MemoryLedger()
    state, draw = begun(peer, ledger)
    saved = loads(dump(state))
    assert isinstance(saved, dict) and saved.pop("update") is None
    restored = load(dumps(saved), DDMLPeerState)
    assert restored == state
    _, sent, _ = give(peer, restored, an_instance(peer.params, draw.id), ledger)
    assert isinstance(sent[0], DDMLUpdate)


@pytest.mark.parametrize("end", [-MAX_WEIGHT, MAX_WEIGHT])
def test_update_of_extreme_instance_stays_in_range(end: int) -> None:
    peer, ledger = a_peer(), MemoryLedger()
    state, draw = begun(peer, ledger)
    weights = np.full(peer.params.n_weights, end, np.int32)
    _, (update, _), _ = give(
        peer,
        state,
        an_instance(peer.params, draw.id).replace(weights=Array.from_values(weights)),
        ledger,
    )
    assert isinstance(update, DDMLUpdate)
    assert (
        abs(update.weights.expect("int32", peer.params.n_weights).astype(np.int64)).max()
        <= MAX_WEIGHT
    )


def test_repeated_and_unrequested_instances_are_ignored() -> None:
    peer, ledger = a_peer(), MemoryLedger()
    state, draw = begun(peer, ledger)
    instance, other = an_instance(peer.params, draw.id), an_instance(peer.params, draw.id, seed=9)
    for unasked in (an_instance(peer.params, an_id(7)), an_instance(peer.params, bytes(ID_BYTES))):
        assert give(peer, state, unasked, ledger) == (state, [], [])
    after, sent, _ = give(peer, state, instance, ledger, 2)
    assert [type(message) for message in sent] == [DDMLUpdate, DDMLDraw]
    for again in (instance, other):
        assert give(peer, after, again, ledger, 3) == (after, [], [])
    assert len(ledger.entries) == 1


def test_instance_before_first_draw_is_ignored() -> None:
    peer, ledger = a_peer(), MemoryLedger()
    assert give(peer, peer.initial_state(), an_instance(peer.params, an_id(0)), ledger)[1:] == (
        [],
        [],
    )
    assert not ledger.entries


def test_peer_state_survives_restart() -> None:
    peer, ledger = a_peer(), MemoryLedger()
    state, draw = begun(peer, ledger)
    waiting = DDMLPeerState(
        draw=an_id(1),
        epoch=4,
        instance=an_instance(peer.params, draw.id, epoch=4),
        asked=("update/0",),
        update=an_id(2),
    )
    for one in (state, waiting):
        assert load(dump(one), DDMLPeerState) == one
    restored = load(dump(waiting), DDMLPeerState)
    assert peer.answer(restored, "update/0", SeededEntropy(1)) == peer.answer(
        waiting, "update/0", SeededEntropy(1)
    )


def test_peer_without_state_resends_stored_update() -> None:
    peer, ledger = a_peer(), MemoryLedger()
    state, draw = begun(peer, ledger)
    _, (first, _), _ = give(peer, state, an_instance(peer.params, draw.id), ledger, 2)
    state, (again,), _ = give(peer, peer.initial_state(), Started(), ledger, 3)
    assert isinstance(again, DDMLDraw)
    state, sent, ends = give(peer, state, an_instance(peer.params, again.id, seed=5), ledger, 4)
    assert sent[0] == first, "the stored bytes, though the instance is another"
    assert isinstance(sent[1], DDMLDraw) and ends == []
    state, sent, ends = give(peer, state, an_instance(peer.params, sent[1].id, seed=6), ledger, 5)
    assert sent[0] != first and ends == [2]
    assert len(ledger.entries) == 2


def test_peer_finishes_when_ledger_refuses() -> None:
    peer = a_peer("weight", 2)
    limit = price_update(peer.params)
    assert limit is not None
    ledger = MemoryLedger(limit=2.5 * limit.epsilon)
    state, draw = begun(peer, ledger)
    for number in range(2):
        state, sent, ends = give(peer, state, an_instance(peer.params, draw.id), ledger, number)
        draw = sent[1]  # type: ignore[assignment]
        assert ends == []
    state, sent, ends = give(peer, state, an_instance(peer.params, draw.id), ledger, 9)
    assert (sent, ends) == ([], [2])
    assert (state.draw, state.instance, state.asked) == (None, None, ("update/0", "update/1"))
    assert give(peer, state, an_instance(peer.params, draw.id), ledger, 10) == (state, [], [])
    assert len(ledger.entries) == 2


def test_peer_finishes_without_update_refused_at_sending() -> None:
    peer, ledger = a_peer(), MemoryLedger()
    state, draw = begun(peer, ledger)
    state, sent, _ = give(peer, state, an_instance(peer.params, draw.id), ledger)
    state, left, ends = give(
        peer,
        state,
        Refused("update/0", BudgetError("BUDGET-002", "The limit was lowered.")),
        ledger,
    )
    assert (left, ends) == ([], [0])
    assert isinstance(sent[1], DDMLDraw)
    assert give(peer, state, an_instance(peer.params, sent[1].id), ledger) == (state, [], [])


def test_price_is_that_of_study_and_other_questions_are_rejected() -> None:
    peer = a_peer()
    assert peer.price("update/1") == price_update(peer.params)
    for question in ("update/2", "update/-1", "update/01", "update", ""):
        with pytest.raises(RemoteProtocolError) as caught:
            peer.price(question)
        assert caught.value.code == "PROTO-002"


def test_unit_weight_is_charged_as_whole_update() -> None:
    peer, ledger = a_peer("weight"), MemoryLedger()
    state, draw = begun(peer, ledger)
    give(peer, state, an_instance(peer.params, draw.id), ledger)
    (entry,) = ledger.entries.values()
    event = entry.release.event
    assert (event.scope.unit.value, event.epsilon) == ("update", pytest.approx(6 * 4.0 / 3))
    assert peer.params.n_weights == 6
    ledger.mark_sending(STUDY.hex(), "update/0")
    assert spent(ledger) == compute_price(peer.params)


@pytest.mark.parametrize(
    "weights",
    [
        np.zeros(5, np.int32),
        np.zeros(7, np.int32),
        np.zeros(6, np.int64),
        np.zeros(6, np.uint32),
        np.full(6, -MAX_WEIGHT - 1, np.int32),
    ],
)
def test_instance_of_wrong_size_type_or_range_is_rejected(weights: Any) -> None:
    peer, ledger = a_peer(), MemoryLedger()
    state, draw = begun(peer, ledger)
    with pytest.raises(RemoteProtocolError) as caught:
        give(
            peer,
            state,
            an_instance(peer.params, draw.id).replace(weights=Array.from_values(weights)),
            ledger,
        )
    assert caught.value.code == "MSG-005"
    assert not ledger.entries


def test_stale_epoch_of_aggregator_is_rejected() -> None:
    peer, ledger = a_peer("weight", 2), MemoryLedger()
    state, draw = begun(peer, ledger)
    state, (_, again), _ = give(peer, state, an_instance(peer.params, draw.id, epoch=30), ledger)
    assert isinstance(again, DDMLDraw) and state.epoch == 30
    with pytest.raises(RemoteProtocolError) as caught:
        give(peer, state, an_instance(peer.params, again.id, epoch=29 - EPOCH_WINDOW), ledger)
    assert caught.value.code == "DDML-001"
    state, (update, _), _ = give(
        peer, state, an_instance(peer.params, again.id, epoch=30 - EPOCH_WINDOW), ledger
    )
    assert isinstance(update, DDMLUpdate) and update.epoch == 30 - EPOCH_WINDOW
    assert state.epoch == 30


def test_epoch_without_step_is_rejected_before_ledger_is_asked() -> None:
    """A gradient of a unit of the grid and a bit, less than one from the second epoch on, under
    more noise than that.
    """
    peer, ledger = (
        a_peer("weight", decay="sqrt", merge="discard", learning_rate=1.2 / 2**20, clip=1.0),
        MemoryLedger(),
    )
    state, draw = begun(peer, ledger)
    for epoch in (1, 1 << 50, (1 << 63) - 1):
        with pytest.raises(RemoteProtocolError) as caught:
            give(peer, state, an_instance(peer.params, draw.id, epoch=epoch), ledger)
        assert caught.value.code == "DDML-001"
    assert not ledger.entries
    assert [
        type(message) for message in give(peer, state, an_instance(peer.params, draw.id), ledger)[1]
    ] == [DDMLUpdate, DDMLDraw]


def test_step_decreases_with_epoch_if_study_sets_decay() -> None:
    peer = a_peer("decay", size=50_000)
    assert isinstance(make_step(peer.params), AdditiveStep)
    sizes = []
    for epoch in (0, 99):
        state = DDMLPeerState(
            update=an_id(9), instance=an_instance(peer.params, an_id(0), epoch=epoch)
        )
        updates = [peer.answer(state, "update/0", SeededEntropy(seed)) for seed in range(200)]
        steps = [
            message.weights.expect("int32", peer.params.n_weights) - some_weights(peer.params)
            for message in updates
        ]  # type: ignore[attr-defined]
        sizes.append(float(np.abs(steps).mean()))
    assert 8 < sizes[0] / sizes[1] < 12


@pytest.mark.parametrize("name", STUDIES)
def test_no_epoch_costs_more_than_price(name: str) -> None:
    params = STUDIES[name]
    peer = a_peer(name)
    for epoch in (0, 1, 2, 7, 50, 99):
        peer._check_epoch(epoch, 0)
        event = make_step(replace(params, decay="sqrt"), epoch).event
        assert event is not None and event.epsilon <= params.epsilon_release


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("gaussian", {"epsilon": 59.9}),
        ("gaussian", {"delta": 0.009}),
        ("weight", {"epsilon": 6 * 4.0 / 3 - 0.1}),
    ],
)
def test_step_above_price_is_rejected(name: str, change: dict[str, float]) -> None:
    """The price of a cheaper study stands for one that an epoch exceeds."""
    peer, ledger = a_peer(name), MemoryLedger()
    peer._price = replace(peer._price, **change)
    state, draw = begun(peer, ledger)
    with pytest.raises(RemoteProtocolError) as caught:
        give(peer, state, an_instance(peer.params, draw.id), ledger)
    assert caught.value.code == "PROTO-002"
    assert not ledger.entries


def test_studies_cover_every_mechanism() -> None:
    found = {name: make_step(params).event for name, params in STUDIES.items()}
    kinds = {name: event.mechanism for name, event in found.items() if event is not None}
    assert (kinds["closest"], kinds["laplace"], kinds["gaussian"]) == (
        "k-closest",
        "discrete-laplace",
        "discrete-gaussian",
    )
    assert len(kinds) == len(STUDIES)


def test_draw_and_update_from_aggregator_are_rejected() -> None:
    peer = a_peer()
    for message in (DDMLDraw(study=STUDY, id=an_id(0)), an_update(peer.params)):
        with pytest.raises(RemoteProtocolError) as caught:
            give(peer, peer.initial_state(), message, MemoryLedger())
        assert caught.value.code == "PROTO-003"


def test_peer_rejects_noiseless_study() -> None:
    with pytest.raises(LocalProtocolError, match="without noise"):
        a_peer(epsilon=math.inf)


@pytest.mark.parametrize(
    "change", [{"learning_rate": 1e6, "clip": 1e6}, {"learning_rate": 1e-9}, {"clip": 5e-324}]
)
def test_peer_rejects_study_without_step_before_draw(
    change: dict[str, float],
) -> None:
    for name in STUDIES:
        with pytest.raises(MechanismError, match="MECH-001"):
            a_peer(name, **change)


def test_peer_rejects_unencodable_rows_before_draw() -> None:
    columns, labels = people(TWO, 2)
    with pytest.raises(LocalProtocolError):
        DDMLPeer(STUDY, STUDIES["laplace"], columns, labels + 1)


def test_peer_repr_and_state_hide_rows() -> None:
    peer = a_peer(n_rows=2)
    assert "Private" in repr(vars(peer)["_rows"])
    state, _ = begun(peer, MemoryLedger())
    assert dump(state) == dump(begun(a_peer(n_rows=1), MemoryLedger())[0])


@pytest.mark.parametrize("name", ["laplace", "words"])
def test_peer_only_rejects_garbage(name: str) -> None:
    params: DDMLParams = STUDIES[name]
    peer, ledger = a_peer(name, 2), MemoryLedger()
    state, draw = begun(peer, ledger)
    after, _, _ = give(peer, state, an_instance(params, draw.id), ledger)
    samples = (an_instance(params, draw.id), draw, an_update(params))
    assert survives_garbage(peer, (peer.initial_state(), state, after), samples) > 12


def test_rows_of_many_devices_are_each_read_once() -> None:
    params = STUDIES["laplace"]
    _, peers = make(params, 4, n_rows=3, phase_timeout=timedelta(hours=1))
    columns, labels = people(params.schema, 12)
    for i, peer in enumerate(peers.values()):
        held = peer._rows.reveal().take(slice(None))
        assert held.targets.tolist() == rows(columns, labels, 3 * i, 3)[1].tolist()
