"""DDML for any messages, rows, networks and model files."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array
from shoal.messages.codec import decode
from shoal.protocols.base import (
    AGGREGATOR,
    START,
    Account,
    Input,
    MemoryLedger,
    OutgoingMessage,
    Received,
    Started,
    run_input,
)
from shoal.protocols.ddml.aggregator import DDMLAggregator
from shoal.protocols.ddml.design_matrix import InputDesign
from shoal.protocols.ddml.merging import MAX_WEIGHT
from shoal.protocols.ddml.messages import MESSAGES, DDMLDraw, DDMLInstance, DDMLUpdate
from shoal.protocols.ddml.model import GLM, from_plain
from shoal.protocols.ddml.params import DDMLParams
from shoal.protocols.ddml.peer import DDMLPeer
from shoal.simulation.network import Faults, run_network
from tests.support.ddml import (
    STUDIES,
    STUDY,
    an_id,
    check,
    check_complete,
    compute_price,
    make,
    people,
    rows,
)
from tests.support.hostile import hostile, read_with_garbage
from tests.support.machines import spent
from tests.support.toy.any_faults import any_faults

NAMES = st.sampled_from(["closest", "laplace", "weight", "classes", "number", "words", "decay"])
epochs = st.integers(0, 30) | st.integers(0, (1 << 63) - 1)
weight = st.sampled_from([0, 1, -1, MAX_WEIGHT, -MAX_WEIGHT, -MAX_WEIGHT - 1]) | st.integers(
    -(1 << 31), (1 << 31) - 1
)


@st.composite
def arrays(draw: st.DrawFn, params: DDMLParams) -> Array:
    """Generate models of the right size, and of others."""
    size = draw(st.sampled_from([params.n_weights] * 6 + [0, 1, params.n_weights + 1]))
    kind = draw(st.sampled_from([np.int32] * 6 + [np.int64, np.uint8]))
    few = draw(st.lists(weight, min_size=1, max_size=4))
    return Array.from_values(np.resize(np.array(few, np.int64), size).astype(kind))


# Any messages of the aggregator.


def collect_updates(
    peer: DDMLPeer, data: st.DataObject, n: int, seed: int
) -> tuple[list[tuple[str, bytes]], MemoryLedger]:
    """Return the updates that leave a peer.

    The peer may lose its state between any two messages, but never its ledger. An instance is for
    the draw that the peer waits for, for an earlier one, or for none.
    """
    ledger = MemoryLedger()
    account = Account(ledger, STUDY, "rows", AGGREGATOR, "a test")
    drawn, left = [an_id(0)], []
    state = peer.initial_state()
    todo: list[Input] = [Started()]
    for number in range(n):
        try:
            state, work = run_input(
                peer, state, todo.pop(), START, SeededEntropy(seed).spawn(number), account
            )
        except RemoteProtocolError:
            work = ()
        for item in work:
            if not isinstance(item, OutgoingMessage):
                continue
            message = decode(item.payload, MESSAGES, STUDY)
            if isinstance(message, DDMLDraw):
                drawn.append(message.id)
            else:
                left.append((str(item.question), account.mark_sending(str(item.question))))
        if data.draw(st.integers(0, 9)) == 0:
            state = peer.initial_state()
            todo.append(Started())
        else:
            draw = drawn[-1] if data.draw(st.booleans()) else data.draw(st.sampled_from(drawn))
            instance = DDMLInstance(
                study=STUDY,
                draw=draw,
                epoch=data.draw(epochs),
                weights=data.draw(arrays(peer.params)),
            )
            todo.append(Received(AGGREGATOR, instance))
    return left, ledger


@hostile(80)
@given(st.data(), NAMES, st.integers(1, 12), st.integers(0, 4), st.integers(0, 2**32))
def test_ddml_device_sends_each_update_once_and_pays_for_it(
    data: st.DataObject, name: str, n: int, n_rows: int, seed: int
) -> None:
    params = STUDIES[name]
    peer = DDMLPeer(STUDY, params, *people(params.schema, n_rows, seed % 100))
    left, ledger = collect_updates(peer, data, n, seed)
    by_question = {
        question: {payload for other, payload in left if other == question} for question, _ in left
    }
    assert all(len(payloads) == 1 for payloads in by_question.values())
    assert set(by_question) == {f"update/{number}" for number in range(len(by_question))}
    assert len(ledger.entries) == len(by_question) <= (params.n_updates if n_rows else 0)
    assert spent(ledger) == len(by_question) * compute_price(params)
    for _, payload in left:
        update = decode(payload, MESSAGES, STUDY)
        assert isinstance(update, DDMLUpdate)
        assert (
            abs(update.weights.expect("int32", params.n_weights).astype(np.int64)).max()
            <= MAX_WEIGHT
        )


@hostile(60)
@given(st.data(), NAMES, st.integers(0, 2**32))
def test_ddml_messages_have_same_form_for_any_rows(
    data: st.DataObject, name: str, seed: int
) -> None:
    params = STUDIES[name]
    columns, labels = people(params.schema, 40)
    first, second = data.draw(st.tuples(st.integers(0, 30), st.integers(0, 30)))
    sizes = data.draw(st.tuples(st.integers(1, 9), st.integers(1, 9)))
    instance = DDMLInstance(
        study=STUDY,
        draw=an_id(1),
        epoch=data.draw(st.integers(0, 20)),
        weights=data.draw(arrays(params)),
    )
    found = []
    for start, size in zip((first, second), sizes, strict=True):
        peer = DDMLPeer(STUDY, params, *rows(columns, labels, start, size))
        account = Account(MemoryLedger(), STUDY, "rows", AGGREGATOR, "a test")
        state = peer.initial_state().replace(draw=an_id(1))
        try:
            _, work = run_input(
                peer, state, Received(AGGREGATOR, instance), START, SeededEntropy(seed), account
            )
        except RemoteProtocolError as error:
            found.append([error.code])
            continue
        found.append(
            [
                (type(item), len(item.payload), item.question)
                if isinstance(item, OutgoingMessage)
                else item
                for item in work
            ]
        )
    assert found[0] == found[1]


# Any messages of the devices.


@hostile(80)
@given(st.data(), st.sampled_from(["closest", "laplace", "weight"]), st.integers(0, 2**32))
def test_ddml_aggregator_keeps_models_in_range_for_any_messages(
    data: st.DataObject, name: str, seed: int
) -> None:
    params = STUDIES[name]
    aggregator = DDMLAggregator(
        STUDY, params, n_expected=data.draw(st.integers(1, 8)), phase_timeout=timedelta(days=1)
    )
    state, _ = aggregator.on_start(aggregator.initial_state(), START, SeededEntropy(seed))
    state = state.replace(n_merged=data.draw(st.sampled_from([0, 0, 20_000])))
    before, n_refused = state.n_merged, 0
    n_given = data.draw(st.integers(1, 15))
    for number in range(n_given):
        update = DDMLUpdate(
            study=STUDY,
            id=an_id(number),
            epoch=data.draw(epochs),
            weights=data.draw(arrays(params)),
        )
        try:
            state, _ = aggregator.on_message(
                state, "?1", update, START, SeededEntropy(seed).spawn(number)
            )
        except RemoteProtocolError as error:
            assert error.code in ("MSG-005", "DDML-001")
            n_refused += 1
    instances = state.to_matrix().astype(np.int64)
    assert instances.shape == (params.n_instances, params.n_weights)
    assert abs(instances).max() <= MAX_WEIGHT
    assert (
        np.isfinite(state.compute_weights()).all()
        and abs(state.compute_weights()).max() <= MAX_WEIGHT
    )
    assert state.n_merged - before + sum(dict(state.refused).values()) + n_refused == n_given
    assert state.is_over == (state.n_merged >= aggregator.n_expected and state.n_merged > before)


# Any network.


# A peer that lost its state draws again; with two crashes in a hundred steps the run still ends.
faults = any_faults(most_lost=0.3).map(
    lambda faults: replace(faults, crash=faults.crash / 5, duplicate=faults.duplicate / 2)
)


@hostile(12)
@given(
    faults,
    st.sampled_from(["closest", "laplace", "weight"]),
    st.integers(0, 2**32),
    st.sampled_from([1, 60, 3600]),
)
def test_ddml_keeps_every_invariant_on_any_network(
    faults: Faults, name: str, seed: int, phase_timeout: int
) -> None:
    params = STUDIES[name]
    aggregator, peers = make(
        params, 4, seed % 1000, phase_timeout=timedelta(seconds=phase_timeout), minimum=0
    )
    ledgers = {name: MemoryLedger() for name in peers}
    outcome = run_network(aggregator, peers, SeededEntropy(seed), faults, ledgers=ledgers)
    check(params, outcome, ledgers)
    if phase_timeout == 3600 and all(
        returns is not None for _, returns in faults.absences.values()
    ):
        check_complete(params, outcome, ledgers)


# Any contents of a model file.

MODELS = [
    GLM(
        params.schema, params.link, params.crosses, np.ones((params.n_outputs, params.design.width))
    )
    for params in (STUDIES["closest"], STUDIES["classes"], STUDIES["number"], STUDIES["words"])
]


@hostile(300)
@given(st.sampled_from(MODELS), st.data())
def test_ddml_model_file_with_garbage_is_rejected_or_valid(model: GLM, data: st.DataObject) -> None:
    read = read_with_garbage(model.to_plain(), from_plain, data)
    if read is None:
        return
    assert read.weights.shape == model.weights.shape
    assert np.isfinite(read.weights).all()
    assert read.design == InputDesign(read.schema, read.crosses, read.centred)
    if read.schema == model.schema:
        assert np.isfinite(read.predict_means(people(model.schema, 5)[0])).all()
