"""AnonML for any requests, rows, studies, networks and model files."""

from __future__ import annotations

import json
import math
from datetime import timedelta
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.data.schema import Categorical, Feature, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.messages.codec import decode
from shoal.privacy.rounding import grains_up
from shoal.protocols.additive_model import ClassificationModel
from shoal.protocols.anonml.assignment import (
    compute_thresholds,
    find_parts,
    scale_words,
    unrank_combinations,
)
from shoal.protocols.anonml.messages import MESSAGES, AnonMLAnswer, AnonMLAsk, AnonMLPublication
from shoal.protocols.anonml.model import from_plain
from shoal.protocols.anonml.params import AnonMLPaperParams, AnonMLParams, AnonMLPlusParams
from shoal.protocols.anonml.peer import AnonMLPeer
from shoal.protocols.anonml.population import simulate
from shoal.protocols.anonml.script import AnonMLScript
from shoal.protocols.anonml.variants import make_script
from shoal.protocols.base import (
    AGGREGATOR,
    START,
    Account,
    MemoryLedger,
    OutgoingMessage,
    Received,
    run_input,
)
from shoal.simulation.network import Faults, run_network
from tests.support.anonml import (
    STUDIES,
    STUDY,
    TWO,
    build_named_script,
    check,
    check_complete,
    make,
    people,
    publications,
    row,
)
from tests.support.hostile import hostile, read_with_garbage
from tests.support.machines import spent
from tests.support.toy.any_faults import any_faults

tickets = st.binary(min_size=32, max_size=32)
PLUS = [name for name, params in STUDIES.items() if isinstance(params, AnonMLPlusParams)]


@lru_cache
def case(name: str) -> tuple[AnonMLScript, list[AnonMLPublication]]:
    script = build_named_script(name)
    return script, publications(script)


# Any messages of the aggregator.

numbers = st.floats(allow_nan=False, allow_infinity=False) | st.floats(-1, 11)
rising = st.lists(st.floats(0, 10, exclude_max=True), min_size=1, max_size=8, unique=True).map(
    lambda cuts: tuple(sorted(cuts))
)


def asks(name: str) -> st.SearchStrategy[AnonMLAsk]:
    """Generate asks for any phase: honest, unusual but acceptable, and nonsense."""
    script, shown = case(name)
    honest = st.sampled_from(list(enumerate(shown)))

    def replace_values(
        phase: int, points: tuple[float, ...], cuts: tuple[float, ...]
    ) -> tuple[int, AnonMLPublication]:
        n_points = len(shown[phase].points)
        changes = {"points": points[:n_points]} if n_points else {"cuts": (cuts,)}
        return phase, shown[phase].replace(**changes)

    fitting = st.builds(
        replace_values,
        st.integers(0, script.n_phases - 1),
        st.lists(numbers, max_size=4).map(tuple),
        rising,
    )
    nonsense = st.tuples(
        st.integers(0, script.n_phases + 2),
        st.builds(
            AnonMLPublication,
            points=st.lists(numbers, max_size=4).map(tuple),
            cuts=st.lists(st.lists(numbers, max_size=3).map(tuple), max_size=2).map(tuple),
            levels=st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), max_size=5).map(
                tuple
            ),
        ),
    )
    return (honest | fitting | nonsense).map(
        lambda drawn: AnonMLAsk(study=STUDY, phase=drawn[0], publication=drawn[1])
    )


def collect_sent(
    peer: AnonMLPeer, asked: list[AnonMLAsk], forgets: list[bool], seed: int
) -> tuple[list[bytes], MemoryLedger]:
    """Return the bytes that leave a peer.

    The peer may lose its state between any two messages, but never its ledger.
    """
    ledger = MemoryLedger()
    account = Account(ledger, STUDY, "rows", AGGREGATOR, "a test")
    state, left = peer.initial_state(), []
    for number, (ask, forget) in enumerate(zip(asked, forgets, strict=True)):
        state = peer.initial_state() if forget else state
        entropy = SeededEntropy(seed).spawn(number)
        try:
            state, work = run_input(peer, state, Received(AGGREGATOR, ask), START, entropy, account)
        except RemoteProtocolError:
            continue
        left += [
            account.mark_sending(str(item.question))
            for item in work
            if isinstance(item, OutgoingMessage)
        ]
    return left, ledger


@hostile(60)
@given(st.data(), st.sampled_from(PLUS), tickets, st.integers(0, 2**32))
def test_anonml_peer_answers_once_and_pays_for_one_answer(
    data: st.DataObject, name: str, ticket: bytes, seed: int
) -> None:
    script, shown = case(name)
    peer = AnonMLPeer(
        STUDY, script, ticket, *row(*people(script.params.schema, 5, seed % 100), seed % 5)
    )
    ((mine, _),) = peer.own_questions.values()
    own = st.builds(lambda ask: ask.replace(phase=mine), asks(name))
    asked = data.draw(st.lists(asks(name) | own, max_size=12))
    asked += data.draw(
        st.sampled_from(
            [
                [],
                [
                    AnonMLAsk(study=STUDY, phase=phase, publication=one)
                    for phase, one in enumerate(shown)
                ],
            ]
        )
    )
    forgets = data.draw(st.lists(st.booleans(), min_size=len(asked), max_size=len(asked)))
    left, ledger = collect_sent(peer, asked, forgets, seed)
    price = script.prices["answer"].epsilon
    assert len(set(left)) <= 1
    assert len(ledger.entries) == (1 if left else 0)
    assert spent(ledger) == (grains_up(price) if left else 0)
    for payload in left:
        answer = decode(payload, MESSAGES, STUDY)
        assert isinstance(answer, AnonMLAnswer)
        assert (answer.phase, answer.question) == peer.own_questions["answer"]


@hostile(60)
@given(st.data(), st.sampled_from(list(STUDIES)), tickets, st.integers(0, 2**32))
def test_anonml_question_and_answer_size_do_not_depend_on_row(
    data: st.DataObject, name: str, ticket: bytes, seed: int
) -> None:
    script, shown = case(name)
    columns, labels = people(script.params.schema, 40)
    first, second = data.draw(st.tuples(st.integers(0, 39), st.integers(0, 39)))
    asked = data.draw(st.lists(asks(name), max_size=8)) + [
        AnonMLAsk(study=STUDY, phase=phase, publication=one) for phase, one in enumerate(shown)
    ]
    one, other = (
        AnonMLPeer(STUDY, script, ticket, *row(columns, labels, i)) for i in (first, second)
    )
    assert one.own_questions == other.own_questions
    (left, _), (right, _) = (
        collect_sent(peer, asked, [False] * len(asked), seed) for peer in (one, other)
    )
    assert [len(payload) for payload in left] == [len(payload) for payload in right]
    assert len(left) == len(one.own_questions)
    for payloads in zip(left, right, strict=True):
        a, b = (decode(payload, MESSAGES, STUDY) for payload in payloads)
        assert isinstance(a, AnonMLAnswer) and isinstance(b, AnonMLAnswer)
        assert a.replace(report=b"") == b.replace(report=b"")


# Any network.

faults = any_faults(most_lost=0.4)


@hostile(12)
@given(
    faults,
    st.sampled_from(["bits", "blocks", "shuffled", "paper", "paper of classes"]),
    st.integers(0, 2**32),
    st.integers(0, 60),
)
def test_anonml_keeps_every_invariant_on_any_network(
    faults: Faults, name: str, seed: int, phase_timeout: int
) -> None:
    script, _ = case(name)
    aggregator, peers = make(
        script, 6, seed % 1000, phase_timeout=timedelta(seconds=phase_timeout), minimum=0
    )
    ledgers = {name: MemoryLedger() for name in peers}
    outcome = run_network(aggregator, peers, SeededEntropy(seed), faults, ledgers=ledgers)
    check(script, outcome, ledgers, peers)
    if all(returns is not None for _, returns in faults.absences.values()):
        check_complete(script, outcome, ledgers, peers)


# Any study.

CUTS = st.none() | st.lists(st.integers(-3, 5), max_size=4, unique=True).map(sorted)


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    features: list[Feature] = []
    for i in range(draw(st.integers(1, 6))):
        if draw(st.booleans()):
            features.append(Numeric(f"f{i}", -3, 6, bins=draw(CUTS), missing=draw(st.booleans())))
        else:
            features.append(
                Categorical(
                    f"f{i}",
                    ["u", "v", "w", "x"][: draw(st.integers(2, 4))],
                    missing=draw(st.booleans()),
                )
            )
    n_labels = draw(st.sampled_from([2, 2, 3, 7]))
    return Schema(
        features, label=Categorical("y", [f"c{i}" for i in range(n_labels)], missing=False)
    )


@st.composite
def studies(draw: st.DrawFn) -> AnonMLParams:
    schema, epsilon = draw(schemas()), draw(st.floats(0.05, 20))
    size = draw(st.sampled_from([1, 100, 10_000, 10**7]))
    if draw(st.booleans()):
        return AnonMLPlusParams(
            schema, epsilon, size, trust=draw(st.sampled_from(["local", "shuffled"]))
        )
    n_subsets = draw(st.integers(1, len(schema.features)))
    subset_size = draw(st.integers(1, min(3, len(schema.features) // n_subsets)))
    accounting = draw(st.sampled_from(["plain", "paper"]))
    return AnonMLPaperParams(
        schema, epsilon, size, draw(st.integers(1, 4)), n_subsets, subset_size, accounting
    )


@hostile(60)
@given(studies(), st.integers(0, 60), st.integers(0, 2**32))
def test_any_anonml_study_keeps_its_budget_and_makes_a_model(
    params: AnonMLParams, n: int, seed: int
) -> None:
    script = make_script(params, seed.to_bytes(32, "big"))
    columns, labels = people(params.schema, n, seed)
    total = sum(grains_up(price.epsilon) for price in script.prices.values())
    if isinstance(params, AnonMLPlusParams) or params.accounting == "plain":
        assert total <= grains_up(params.epsilon)
    for phase, shown in enumerate(publications(script, n)):
        script.check_publication(phase, shown)
        for number, question in enumerate(script.questions(phase, shown)):
            assert question.mechanism is not None
            assert question.n_cells == question.mechanism.cardinality
            assert (
                question.mechanism.event().epsilon
                <= script.prices[script.question_name(phase, number)].epsilon
            )
    learned = simulate(script, columns, labels, SeededEntropy(seed))
    chances = learned.model.probabilities(columns)
    assert chances.shape == (n, params.n_labels)
    assert np.isfinite(chances).all() and np.allclose(chances.sum(axis=1), 1)
    again = from_plain(json.loads(json.dumps(learned.model.to_plain(), allow_nan=False)))
    assert again.probabilities(columns).tolist() == chances.tolist()
    assert len(learned.answers) == script.n_phases


@hostile(200)
@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20), st.integers(1, 40), st.data())
def test_unranked_combinations_increase_and_keep_order_of_words(
    words: list[int], n: int, data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, min(n, 6)))
    array = np.array(sorted(words), np.uint64)
    chosen = unrank_combinations(array, n, k).tolist()
    assert all(0 <= low < high < n for one in chosen for low, high in pairwise(one))
    assert chosen == sorted(chosen)
    assert scale_words(array, n).tolist() == [word * n >> 64 for word in sorted(words)]


@hostile(200)
@given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=20).filter(any), st.integers(0, 2**64 - 1)
)
def test_word_selects_part_with_covering_weight(weights: list[int], word: int) -> None:
    shares = [Fraction(weight, sum(weights)) for weight in weights]
    part = int(find_parts(np.array([word], np.uint64), compute_thresholds(shares))[0])
    assert math.floor(sum(shares[:part]) * 2**64) <= word or part == 0
    assert word < math.ceil(sum(shares[: part + 1]) * 2**64)


# Any contents of a model file.

MODELS: list[ClassificationModel] = [
    simulate(case(name)[0], *people(TWO, 300), SeededEntropy(1)).model for name in ("bits", "paper")
]


@hostile(300)
@given(st.sampled_from(MODELS), st.data())
def test_anonml_model_file_with_garbage_is_rejected_or_valid(
    model: ClassificationModel, data: st.DataObject
) -> None:
    read = read_with_garbage(model.to_plain(), from_plain, data)
    if read is None:
        return
    columns = {
        name: column for name, column in people(TWO, 5)[0].items() if name in read.schema.names
    }
    if len(columns) == len(read.schema.names):
        assert np.isfinite(read.probabilities(columns)).all()
