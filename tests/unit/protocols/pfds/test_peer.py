"""The read-only peer: it accepts one published model and rejects hostile messages."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array, Message
from shoal.messages.codec import dump, load
from shoal.protocols.base import Abort, Finish, MemoryLedger, Started, Tick
from shoal.protocols.pfds.aggregator import make_shared_model, read_shared_model
from shoal.protocols.pfds.messages import (
    MAX_REASON,
    HolderTables,
    LabellingHolders,
    PFDSAsk,
    PFDSStudyEnd,
    SharedModel,
    encode_floats,
)
from shoal.protocols.pfds.model import PooledModel
from shoal.protocols.pfds.peer import PFDSPeerState, ReadOnlyPeer
from shoal.protocols.pfds.personal_model import PersonalModel, fit_personal_model
from shoal.protocols.secagg.messages import (
    SumAgreement,
    SumBoxes,
    SumKeyList,
    SumKeys,
    SumSurvivors,
)
from tests.support.machines import before, endings, give
from tests.support.pfds import STUDIES, logged, pooled_rows, same_model
from tests.support.toy.garbage import survives_garbage

STUDY = bytes(32)


def make_reader(name: str = "local", n_rows: int | None = 40) -> ReadOnlyPeer:
    params = STUDIES[name]
    return ReadOnlyPeer(params, STUDY, None if n_rows is None else pooled_rows(params, n_rows, 7))


def make_model(name: str = "local") -> SharedModel:
    return make_shared_model(STUDY, logged(name)[2].model)


def catch_code(reader: ReadOnlyPeer, state: PFDSPeerState, message: Message) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        give(reader, state, message)
    return caught.value.code


@pytest.mark.parametrize("name", STUDIES)
def test_read_only_peer_finishes_with_personal_model_and_spends_nothing(name: str) -> None:
    reader, ledger, message = make_reader(name), MemoryLedger(), make_model(name)
    state, sent, work = give(reader, reader.initial_state(), message, ledger)
    (ending,) = endings(work)
    assert isinstance(ending, Finish) and isinstance(ending.result, PersonalModel)
    rows = pooled_rows(STUDIES[name], 40, 7)
    expected = fit_personal_model(read_shared_model(STUDIES[name], message), rows, SeededEntropy(1))
    assert np.array_equal(
        ending.result.compute_scores(rows.cells), expected.compute_scores(rows.cells)
    )
    assert state.is_over and state.published == message and not sent and not ledger.entries
    assert load(dump(state), PFDSPeerState) == state


def test_read_only_peer_without_rows_finishes_with_pooled_model() -> None:
    reader = make_reader(n_rows=None)
    _, _, work = give(reader, reader.initial_state(), make_model())
    (ending,) = endings(work)
    assert (
        isinstance(ending, Finish)
        and isinstance(ending.result, PooledModel)
        and same_model(ending.result, logged("local")[2].model)
    )


def test_read_only_peer_accepts_one_model_and_rejects_another() -> None:
    reader = make_reader()
    state, _, _ = give(reader, reader.initial_state(), make_model())
    assert give(reader, state, make_model()) == (state, [], ())
    other = make_model().replace(intercepts=encode_floats(np.array([0.25])))
    assert catch_code(reader, state, other) == "PFDS-003"
    assert (
        catch_code(
            reader,
            reader.initial_state(),
            make_model().replace(weights=Array.from_values(np.zeros(3, np.int64))),
        )
        == "MSG-005"
    )


def test_model_is_accepted_after_the_end() -> None:
    reader = make_reader()
    ended, sent, work = give(
        reader, reader.initial_state(), PFDSStudyEnd(study=STUDY, holders=("peer-0",))
    )
    assert ended.is_over and sent == [] and work == ()
    assert give(reader, ended, PFDSStudyEnd(study=STUDY)) == (ended, [], ())
    taken, _, work = give(reader, ended, make_model())
    assert isinstance(endings(work)[0], Finish)
    assert give(reader, taken, PFDSStudyEnd(study=STUDY, reason="Too few.")) == (taken, [], ()), (
        "a model that was accepted is kept"
    )


def test_failed_study_aborts_the_read_only_peer_with_the_reason() -> None:
    reader = make_reader()
    state, _, (ending,) = give(
        reader, reader.initial_state(), PFDSStudyEnd(study=STUDY, reason="Round 2 is given up.")
    )
    assert state.is_over and isinstance(ending, Abort) and ending.error.code == "PFDS-004"
    assert (
        ending.error.what
        == "The aggregator ended the study without a result. Its reason: Round 2 is given up."
    )


def test_reason_of_the_aggregator_is_escaped_and_cut() -> None:
    reader = make_reader()
    _, _, (ending,) = give(
        reader,
        reader.initial_state(),
        PFDSStudyEnd(study=STUDY, reason="\x1b[2J\u202efine\nwhy       none"),
    )
    assert (
        isinstance(ending, Abort)
        and ending.error.what.isprintable()
        and "\\x1b[2J\\u202efine\\nwhy" in ending.error.what
    )
    _, _, (ending,) = give(
        reader, reader.initial_state(), PFDSStudyEnd(study=STUDY, reason="\x1b" * MAX_REASON)
    )
    assert isinstance(ending, Abort) and len(ending.error.what) < MAX_REASON + 80


def test_read_only_peer_drops_messages_for_sharers_and_rejects_others() -> None:
    reader, peer = make_reader("sums"), logged("sums")[1]["peer-0"]
    for kind in (PFDSAsk, SumKeyList, SumSurvivors, SumAgreement):
        message = before(peer, kind)[1].replace(study=STUDY)
        assert give(reader, reader.initial_state(), message) == (reader.initial_state(), [], ())
    boxes = before(peer, SumBoxes)[1].replace(study=STUDY)
    keys = before(logged("sums")[0], SumKeys)[1].replace(study=STUDY)
    tables = HolderTables(study=STUDY, counts=Array.from_values(np.zeros(1, np.int64)))
    for message in (boxes, keys, tables, LabellingHolders(study=STUDY, holders=("peer-0",))):
        assert catch_code(reader, reader.initial_state(), message) == "PROTO-003"


def test_read_only_peer_has_no_prices_and_no_answers() -> None:
    reader = make_reader()
    with pytest.raises(RemoteProtocolError, match="not part of the study"):
        reader.price("tables")
    with pytest.raises(RemoteProtocolError, match="not part of the study"):
        reader.answer(reader.initial_state(), "tables", SeededEntropy(1))
    for given in (Started(), Tick()):
        assert give(reader, reader.initial_state(), given) == (reader.initial_state(), [], ())


@pytest.mark.untraced
@pytest.mark.parametrize("name", ["sums", "number", "three"])
def test_every_valid_published_model_gives_a_personal_model(name: str) -> None:
    """Numbers at the limits cause no overflow and no error."""
    params = STUDIES[name]
    cells, models = params.n_cells, params.n_models
    shares = np.concatenate([np.eye(1, arity)[0] for arity in params.arities])
    for seed in range(4):
        draw = np.random.default_rng(seed)
        model = PooledModel(
            params,
            draw.choice([-1e6, -1e-300, 0.0, 1.0, 1e6], (cells, models)),
            draw.choice([-1e6, 0.0, 1e6], models),
            draw.choice([0.0, 1e-300, 1.0, 1e12], (cells, models)),
            shares,
        )
        reader = ReadOnlyPeer(params, STUDY, pooled_rows(params, int(draw.integers(0, 60)), seed))
        _, _, work = give(reader, reader.initial_state(), make_shared_model(STUDY, model))
        (ending,) = endings(work)
        assert isinstance(ending, Finish) and isinstance(ending.result, PersonalModel)
        assert np.isfinite(ending.result.compute_scores(pooled_rows(params).cells)).all()


def test_read_only_peer_rejects_or_ignores_garbage() -> None:
    reader = make_reader(n_rows=20)
    ended = PFDSStudyEnd(study=STUDY, holders=("peer-0",), reason="Why.")
    assert survives_garbage(reader, [reader.initial_state()], [make_model(), ended]) > 0
