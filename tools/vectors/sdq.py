"""Vectors of SDQ: its messages, the digests of questions, and the signed statements."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from shoal.crypto.secagg.key_shares import (
    derive_public_keys,
)
from shoal.messages.base import Array
from shoal.messages.codec import encode
from shoal.protocols.mpc.party import JointFrame
from shoal.protocols.sdq import messages as sdq_messages
from shoal.protocols.sdq.committee import (
    _encode_box_info,
    _encode_box_statement,
    committee_context,
    compute_ask_digest,
    encode_key_statement,
)
from shoal.protocols.sdq.queries import CountQuery, HistogramQuery, MarginalsQuery, QueryCondition
from shoal.protocols.sdq.script import SDQScriptState
from shoal.protocols.secagg import messages as sum_messages
from shoal.protocols.secagg.messages import (
    keys_statement,
    masked_statement,
    shares_statement,
    unmask_statement,
)
from tools.vectors.base import CONTEXT, STUDY, describe_messages, describe_rejected, tag_value
from tools.vectors.crypto import MEMBERS


def make_sdq() -> dict[str, Any]:
    """Return messages, digests of questions and signed statements."""
    key, digest, signature, row = (
        bytes([1]) * 32,
        bytes([2]) * 32,
        bytes([3]) * 64,
        bytes([4]) * 120,
    )
    box = sdq_messages.SealedBox(member=4, box=row, signature=signature)
    party = sdq_messages.PartyKey(party=2, box=key, signature=signature)
    course = SDQScriptState(step=3, choices=(1, -1, 0), leaves=(True, False))
    condition = QueryCondition(feature="age", cells=(0, 2))
    asks = [
        sdq_messages.SDQAsk(study=STUDY, round=0, course=SDQScriptState()),
        sdq_messages.SDQAsk(study=STUDY, round=5, course=course),
        sdq_messages.SDQAsk(
            study=STUDY,
            round=6,
            course=SDQScriptState(),
            query=CountQuery(where=(condition,)),
            number=1,
        ),
        sdq_messages.SDQAsk(
            study=STUDY,
            round=7,
            course=SDQScriptState(),
            query=HistogramQuery(features=("age", "ill")),
            number=2,
        ),
        sdq_messages.SDQAsk(
            study=STUDY,
            round=8,
            course=SDQScriptState(),
            query=MarginalsQuery(features=("age",)),
            number=3,
        ),
    ]
    about: dict[str, Any] = {"study": STUDY, "round": 3}
    signed = {**about, "signature": signature}
    good = [
        *asks,
        sdq_messages.Counts(**about, counts=Array.from_values(np.array([-3, 1 << 40], np.int64))),
        sdq_messages.JointKey(**signed, box=key),
        sdq_messages.JointKeys(**about, keys=(party,)),
        sdq_messages.SDQScores(**about, boxes=(box,)),
        sdq_messages.Contributions(**about, boxes=(box,)),
        sdq_messages.ChoiceResult(**about, position=2),
        sdq_messages.UnusableShares(**about, dealer=4),
        sdq_messages.ComputationFailure(**about),
        sdq_messages.ComputationFailure(**about, party=4),
        sdq_messages.SDQStudyEnd(study=STUDY),
        sdq_messages.SDQStudyEnd(study=STUDY, reason="Round 3 is given up."),
        JointFrame(**about, sender=0, to=2, number=300, sealed=b"sealed"),
        sum_messages.SumKeys(**signed, query=digest, mask=key, box=key, commitment=digest),
        sum_messages.SumKeyList(**about, members=(0, 3), entries=bytes(192)),
        sum_messages.SumShares(**signed, boxes=row, commitments=digest * 2, signatures=signature),
        sum_messages.SumBoxes(
            **about, dealers=(3,), boxes=row, commitments=digest, signatures=signature
        ),
        sum_messages.SumMasked(
            **signed, vector=Array.from_values(np.array([0, (1 << 64) - 1], np.uint64))
        ),
        sum_messages.SumSurvivors(**about, survivors=(0, 3)),
        sum_messages.SumAgreed(**signed),
        sum_messages.SumAgreement(
            **about, survivors=(0, 3), signers=(0, 3), signatures=signature * 2
        ),
        sum_messages.SumUnmask(**signed, shares=bytes(136)),
    ]
    ask = asks[0].model_dump(exclude={"study"})
    bad: dict[str, tuple[str, dict[str, object], str]] = {
        "a negative round": ("sdq.ask", {**ask, "round": -1}, "MSG-005"),
        "a course without its leaves": (
            "sdq.ask",
            {**ask, "course": {"step": 0, "choices": []}},
            "MSG-003",
        ),
        "a query of an unknown kind": (
            "sdq.ask",
            {**ask, "query": {"kind": "mean", "features": ["age"]}},
            "MSG-005",
        ),
        "a query without its kind": ("sdq.ask", {**ask, "query": {"features": ["age"]}}, "MSG-005"),
        "a key of 31 bytes": (
            "sdq.joint-key",
            {"round": 0, "box": bytes(31), "signature": signature},
            "MSG-005",
        ),
        "a signature of 63 bytes": ("sum.agreed", {"round": 0, "signature": bytes(63)}, "MSG-005"),
        "members that do not rise": ("sum.survivors", {"round": 0, "survivors": [3, 0]}, "MSG-005"),
        "a member twice": ("sum.survivors", {"round": 0, "survivors": [3, 3]}, "MSG-005"),
        "a box beyond 32,768 bytes": (
            "sdq.scores",
            {"round": 0, "boxes": [{"member": 0, "box": bytes(32769), "signature": signature}]},
            "MSG-005",
        ),
        "a reason of 501 characters": ("sdq.ended", {"reason": "x" * 501}, "MSG-005"),
        "a frame to a negative party": (
            "joint.frame",
            {"round": 0, "sender": 0, "to": -1, "number": 0, "sealed": b""},
            "MSG-005",
        ),
        "a message of another name": ("sdq.answer", ask, "MSG-004"),
    }
    keys = derive_public_keys(MEMBERS[0], CONTEXT, 0)
    committee = [
        party.replace(party=0, box=digest),
        party,
        party.replace(party=3, box=bytes([5]) * 32),
    ]
    return {
        "study": STUDY.hex(),
        "read": describe_messages(good),
        "refused": describe_rejected(bad),
        "queries": [
            {"hex": encode(one).hex(), "digest": compute_ask_digest(one).hex()} for one in asks
        ],
        "context": tag_value(asdict(CONTEXT)),
        "committee": {
            "keys": [tag_value(one.model_dump()) for one in committee],
            "query": committee_context(CONTEXT, committee).query.hex(),
        },
        "statements": {
            "sum.keys": keys_statement(CONTEXT, 0, keys).hex(),
            "sum.shares": shares_statement(
                CONTEXT, 0, digest, b"boxes", b"commitments", b"signatures"
            ).hex(),
            "sum.masked": masked_statement(CONTEXT, 0, digest, (0, 1, 3), b"vector").hex(),
            "sum.unmask": unmask_statement(CONTEXT, 0, b"shares").hex(),
            "sdq.joint-key": encode_key_statement(CONTEXT, 2, key).hex(),
            "sdq.scores": _encode_box_statement(
                committee_context(CONTEXT, committee), 4, 2, key, b"box"
            ).hex(),
            "sealed scores": _encode_box_info(committee_context(CONTEXT, committee), 4, 2).hex(),
        },
    }
