"""PFDS's messages: encoding, submissions, prices, and size limits."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array, Message
from shoal.messages.codec import decode, dumps, encode, loads
from shoal.protocols.pfds.messages import (
    MESSAGES,
    ForwardedPiece,
    HolderTables,
    LabellingHolders,
    LeafCounts,
    LeafLabels,
    LeftOutHolder,
    LevelCounts,
    LevelSplits,
    PFDSAsk,
    PFDSScriptState,
    PFDSStudyEnd,
    SharedModel,
    SyntheticData,
    decode_floats,
    encode_floats,
)
from shoal.protocols.secagg.messages import SUM_MESSAGES
from shoal.study.pfds import MAX_COUNTS

STUDY = bytes(range(32))


def make_ints(n: int = 2) -> Array:
    return Array.from_values(np.arange(n, dtype=np.int64))


def make_floats(n: int = 2) -> Array:
    return encode_floats(np.linspace(-1, 1, n))


def make_ask(n: int = 2) -> PFDSAsk:
    return PFDSAsk(
        study=STUDY,
        round=1,
        course=PFDSScriptState(
            step=1, weights=make_ints(n), intercept=-5, direction=make_ints(n), reaches=(1, 2)
        ),
    )


SPLITS = LevelSplits(
    study=STUDY,
    level=3,
    attributes=Array.from_values(np.array([0, 1], np.int16)),
    values=make_floats(),
)
LABELS = LeafLabels(study=STUDY, labels=Array.from_values(np.array([0, 1], np.uint8)))
DATA = SyntheticData(
    study=STUDY,
    n_rows=2,
    columns=(make_floats(), Array.from_values(np.array([0, -1], np.int16))),
    labels=make_floats(),
)
SAMPLES: list[tuple[Message, bool, bytes | None]] = [
    (make_ask(), False, None),
    (HolderTables(study=STUDY, counts=make_ints()), True, b"tables"),
    (
        SharedModel(
            study=STUDY,
            weights=make_floats(),
            intercepts=make_floats(1),
            variances=make_floats(),
            shares=make_floats(),
        ),
        False,
        None,
    ),
    (SPLITS, True, b"\0\3"),
    (
        LeafCounts(study=STUDY, counts=Array.from_values(np.array([-1, 7], np.int32))),
        True,
        b"leaves",
    ),
    (LevelCounts(study=STUDY, level=258, counts=make_ints()), True, b"\1\2"),
    (DATA, False, b"data"),
    (ForwardedPiece(study=STUDY, holder="north", shared=SPLITS), False, None),
    (ForwardedPiece(study=STUDY, holder="north", shared=LABELS), False, None),
    (ForwardedPiece(study=STUDY, holder="north", shared=DATA), False, None),
    (LabellingHolders(study=STUDY, holders=("north",)), False, None),
    (
        PFDSStudyEnd(
            study=STUDY,
            holders=("north",),
            left_out=(LeftOutHolder(holder="south", reason="it was late"),),
        ),
        False,
        None,
    ),
    (PFDSStudyEnd(study=STUDY, reason="Nobody came."), False, None),
]


@pytest.mark.parametrize(
    "message, spends, submission", SAMPLES, ids=[type(sample[0]).__name__ for sample in SAMPLES]
)
def test_decode_inverts_encode_and_states_spending(
    message: Message, spends: bool, submission: bytes | None
) -> None:
    assert decode(encode(message), MESSAGES, STUDY) == message
    assert (
        message.spends is spends and message.submission == submission and not message.is_anonymous
    )


def test_registry_has_all_messages_except_forwarded_only_ones() -> None:
    assert set(MESSAGES.values()) == {*(type(sample[0]) for sample in SAMPLES), *SUM_MESSAGES}
    with pytest.raises(RemoteProtocolError) as caught:
        decode(encode(LABELS), MESSAGES, STUDY)
    assert caught.value.code == "MSG-004"


def test_forwarded_piece_of_another_study_is_rejected() -> None:
    envelope = loads(encode(ForwardedPiece(study=STUDY, holder="north", shared=SPLITS)))
    assert isinstance(envelope, dict)
    body = {**envelope["body"], "shared": {**envelope["body"]["shared"], "study": bytes(32)}}
    with pytest.raises(RemoteProtocolError) as caught:
        decode(dumps({**envelope, "body": body}), MESSAGES, STUDY)
    assert caught.value.code == "MSG-005"


@pytest.mark.parametrize("values", [[], [0.0, -0.0, 5e-324, 1.7976931348623157e308], [0.1, -1 / 3]])
def test_decode_floats_inverts_encode_floats(values: list[float]) -> None:
    read = decode_floats(encode_floats(np.array(values)), len(values))
    assert read.tobytes() == np.array(values, np.float64).tobytes()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_decode_floats_rejects_numbers_that_are_not_finite(value: float) -> None:
    with pytest.raises(RemoteProtocolError, match="not finite"):
        decode_floats(encode_floats(np.array([0.0, value])), 2)


def test_decode_floats_rejects_other_sizes_and_types() -> None:
    for array in (make_floats(3), Array.from_values(np.zeros(2, np.uint64))):
        with pytest.raises(RemoteProtocolError) as caught:
            decode_floats(array, 2)
        assert caught.value.code == "MSG-005"


def test_largest_messages_fit_their_limit() -> None:
    """Tables with the most counts, which have two sides or more, and the most holders."""
    most, name = MAX_COUNTS, "\U0001f41f" * 200
    sizes = {
        "weights": make_floats(most),
        "intercepts": make_floats(most // 2),
        "variances": make_floats(most),
        "shares": make_floats(most // 2),
    }
    left = tuple(
        LeftOutHolder(holder=name, reason="missing in sums: " + "residuals/0, " * 6)
        for _ in range(10_000)
    )
    for message in (
        make_ask(most // 2),
        HolderTables(study=STUDY, counts=make_ints(most)),
        SharedModel(study=STUDY, **sizes),
        PFDSStudyEnd(study=STUDY, left_out=left),
        PFDSStudyEnd(study=STUDY, holders=(name,) * 10_000),
        LabellingHolders(study=STUDY, holders=(name,) * 10_000),
    ):
        assert len(encode(message)) <= message.max_bytes
