"""Who only reads takes what is published, once, and is not led astray by who publishes it."""

from __future__ import annotations

import numpy as np
import pytest

from machine_runs import before, endings, give
from pfds_cases import STUDIES, logged, pooled_rows, same_model
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array, Message
from shoal.messages.codec import dump, load
from shoal.protocols.base import Abort, Finish, MemoryLedger, Started, Tick
from shoal.protocols.pfds.home import Home, at_home
from shoal.protocols.pfds.messages import MAX_REASON, Ask, Ended, Label, SharedModel, Tables, floats_in
from shoal.protocols.pfds.model import Model
from shoal.protocols.pfds.publishing import model_of, shared
from shoal.protocols.pfds.reader import Hearing, Reader
from shoal.protocols.sums.messages import SumAgreement, SumBoxes, SumKeyList, SumKeys, SumSurvivors
from toy.garbage import survives_garbage

STUDY = bytes(32)


def a_reader(name: str = "local", n_rows: int | None = 40) -> Reader:
    params = STUDIES[name]
    return Reader(params, STUDY, None if n_rows is None else pooled_rows(params, n_rows, 7))


def a_model(name: str = "local") -> SharedModel:
    return shared(STUDY, logged(name)[2].model)


def refusal(reader: Reader, state: Hearing, message: Message) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        give(reader, state, message)
    return caught.value.code


@pytest.mark.parametrize("name", STUDIES)
def test_a_reader_finishes_with_its_home_model_and_spends_nothing(name: str) -> None:
    reader, ledger, message = a_reader(name), MemoryLedger(), a_model(name)
    state, sent, work = give(reader, reader.initial(), message, ledger)
    (ending,) = endings(work)
    assert isinstance(ending, Finish) and isinstance(ending.result, Home)
    rows = pooled_rows(STUDIES[name], 40, 7)
    expected = at_home(model_of(STUDIES[name], message), rows, SeededEntropy(1))
    assert np.array_equal(ending.result.scores(rows.cells), expected.scores(rows.cells))
    assert state.is_over and state.published == message and not sent and not ledger.entries
    assert load(dump(state), Hearing) == state


def test_without_rows_it_finishes_with_the_pooled_model() -> None:
    reader = a_reader(n_rows=None)
    _, _, work = give(reader, reader.initial(), a_model())
    (ending,) = endings(work)
    assert isinstance(ending, Finish) and isinstance(ending.result, Model) and same_model(ending.result, logged("local")[2].model)


def test_a_model_is_taken_once_and_another_one_is_refused() -> None:
    reader = a_reader()
    state, _, _ = give(reader, reader.initial(), a_model())
    assert give(reader, state, a_model()) == (state, [], ())
    other = a_model().replace(intercepts=floats_in(np.array([0.25])))
    assert refusal(reader, state, other) == "PFDS-003"
    assert refusal(reader, reader.initial(), a_model().replace(weights=Array.of(np.zeros(3, np.int64)))) == "MSG-005"


def test_the_end_may_come_before_the_model() -> None:
    reader = a_reader()
    ended, sent, work = give(reader, reader.initial(), Ended(study=STUDY, holders=("peer-0",)))
    assert ended.is_over and sent == [] and work == ()
    assert give(reader, ended, Ended(study=STUDY)) == (ended, [], ())
    taken, _, work = give(reader, ended, a_model())
    assert isinstance(endings(work)[0], Finish)
    assert give(reader, taken, Ended(study=STUDY, reason="Too few.")) == (taken, [], ()), "what is there stays there"


def test_a_study_that_was_given_up_ends_the_reader_with_the_reason() -> None:
    reader = a_reader()
    state, _, (ending,) = give(reader, reader.initial(), Ended(study=STUDY, reason="Round 2 is given up."))
    assert state.is_over and isinstance(ending, Abort) and ending.error.code == "PFDS-004"
    assert ending.error.what == "The study ends without a result. Its aggregator says: Round 2 is given up."


def test_the_words_of_a_stranger_are_shown_plainly_and_cut() -> None:
    reader = a_reader()
    _, _, (ending,) = give(reader, reader.initial(), Ended(study=STUDY, reason="\x1b[2J\u202efine\nwhy       none"))
    assert isinstance(ending, Abort) and ending.error.what.isprintable() and "\\x1b[2J\\u202efine\\nwhy" in ending.error.what
    _, _, (ending,) = give(reader, reader.initial(), Ended(study=STUDY, reason="\x1b" * MAX_REASON))
    assert isinstance(ending, Abort) and len(ending.error.what) < MAX_REASON + 80


def test_what_concerns_those_that_share_is_dropped_and_all_else_refused() -> None:
    reader, peer = a_reader("sums"), logged("sums")[1]["peer-0"]
    for kind in (Ask, SumKeyList, SumSurvivors, SumAgreement):
        message = before(peer, kind)[1].replace(study=STUDY)
        assert give(reader, reader.initial(), message) == (reader.initial(), [], ())
    boxes = before(peer, SumBoxes)[1].replace(study=STUDY)
    keys = before(logged("sums")[0], SumKeys)[1].replace(study=STUDY)
    tables = Tables(study=STUDY, counts=Array.of(np.zeros(1, np.int64)))
    for message in (boxes, keys, tables, Label(study=STUDY, holders=("peer-0",))):
        assert refusal(reader, reader.initial(), message) == "PROTO-003"


def test_a_reader_has_no_price_and_no_answer_for_anything() -> None:
    reader = a_reader()
    with pytest.raises(RemoteProtocolError, match="not part of the study"):
        reader.price("tables")
    with pytest.raises(RemoteProtocolError, match="not part of the study"):
        reader.answer(reader.initial(), "tables", SeededEntropy(1))
    for given in (Started(), Tick()):
        assert give(reader, reader.initial(), given) == (reader.initial(), [], ())


@pytest.mark.untraced
@pytest.mark.parametrize("name", ["sums", "number", "three"])
def test_whatever_model_is_published_a_home_model_comes_of_it(name: str) -> None:
    """Numbers at the ends of what is allowed: nothing overflows, and nothing is raised."""
    params = STUDIES[name]
    cells, models = params.n_cells, params.n_models
    shares = np.concatenate([np.eye(1, arity)[0] for arity in params.arities])
    for seed in range(4):
        draw = np.random.default_rng(seed)
        model = Model(
            params,
            draw.choice([-1e6, -1e-300, 0.0, 1.0, 1e6], (cells, models)),
            draw.choice([-1e6, 0.0, 1e6], models),
            draw.choice([0.0, 1e-300, 1.0, 1e12], (cells, models)),
            shares,
        )
        reader = Reader(params, STUDY, pooled_rows(params, int(draw.integers(0, 60)), seed))
        _, _, work = give(reader, reader.initial(), shared(STUDY, model))
        (ending,) = endings(work)
        assert isinstance(ending, Finish) and isinstance(ending.result, Home)
        assert np.isfinite(ending.result.scores(pooled_rows(params).cells)).all()


def test_garbage_is_refused_or_does_nothing() -> None:
    reader = a_reader(n_rows=20)
    ended = Ended(study=STUDY, holders=("peer-0",), reason="Why.")
    assert survives_garbage(reader, [reader.initial()], [a_model(), ended]) > 0
