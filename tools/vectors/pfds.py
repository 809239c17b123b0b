"""Vectors of PFDS: its messages, the digests of questions, and the assigned tables."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.data.schema import Categorical, Schema
from shoal.messages.base import Array
from shoal.messages.codec import encode
from shoal.protocols.pfds import messages as pfds_messages
from shoal.protocols.pfds.messages import PFDSScriptState as PfdsCourse
from shoal.protocols.pfds.messages import compute_ask_digest as compute_pfds_ask_digest
from shoal.protocols.pfds.params import PFDSParams
from shoal.protocols.pfds.tables import assign_attributes, choose_n_tables
from tools.vectors.base import STUDY, describe_messages, describe_rejected

TABLES = ((7, 3, 400), (5, 12, 24_000), (3, 2, 10))
"""Attributes, holders and rows of studies in which each holder answers some tables."""


def make_pfds() -> dict[str, Any]:
    """Return messages, digests of questions and assignments of tables."""
    counts = Array.from_values(np.array([-3, 1 << 40], np.int64))
    floats = pfds_messages.encode_floats(np.array([0.5, -1e-300]))
    course = PfdsCourse(
        step=0, weights=counts, intercept=0, direction=counts, reaches=(1 << 20, 1 << 20)
    )
    asks = [
        pfds_messages.PFDSAsk(study=STUDY, round=0, course=course),
        pfds_messages.PFDSAsk(
            study=STUDY,
            round=3,
            course=course.replace(step=3, intercept=-(1 << 39), reaches=(1 << 16, 1 << 30)),
        ),
    ]
    splits = pfds_messages.LevelSplits(
        study=STUDY,
        level=1,
        attributes=Array.from_values(np.array([0, 2], np.int16)),
        values=floats,
    )
    labels = pfds_messages.LeafLabels(
        study=STUDY, labels=Array.from_values(np.array([0, 1, 1], np.uint8))
    )
    data = pfds_messages.SyntheticData(
        study=STUDY,
        n_rows=2,
        columns=(floats, Array.from_values(np.array([0, -1], np.int16))),
        labels=Array.from_values(np.array([1, 0], np.int16)),
    )
    left = pfds_messages.LeftOutHolder(holder="south", reason="nothing usable came from it in time")
    good = [
        *asks,
        pfds_messages.HolderTables(study=STUDY, counts=counts),
        pfds_messages.SharedModel(
            study=STUDY, weights=floats, intercepts=floats, variances=floats, shares=floats
        ),
        splits,
        pfds_messages.LeafCounts(
            study=STUDY, counts=Array.from_values(np.array([-3, 1 << 20], np.int32))
        ),
        pfds_messages.LevelCounts(study=STUDY, level=2, counts=counts),
        data,
        *(
            pfds_messages.ForwardedPiece(study=STUDY, holder="north", shared=shared)
            for shared in (splits, labels, data)
        ),
        pfds_messages.LabellingHolders(study=STUDY, holders=("north", "south")),
        pfds_messages.PFDSStudyEnd(study=STUDY, holders=("north",), left_out=(left,)),
        pfds_messages.PFDSStudyEnd(study=STUDY, reason="Round 3 of a secure sum is given up."),
    ]
    ask, passed = asks[0].model_dump(exclude={"study"}), splits.model_dump()
    bad: dict[str, tuple[str, dict[str, object], str]] = {
        "a negative round": ("pfds.ask", {**ask, "round": -1}, "MSG-005"),
        "a course without its direction": (
            "pfds.ask",
            {
                **ask,
                "course": {key: part for key, part in ask["course"].items() if key != "direction"},
            },
            "MSG-005",
        ),
        "a course with three reaches": (
            "pfds.ask",
            {**ask, "course": {**ask["course"], "reaches": [1, 2, 3]}},
            "MSG-005",
        ),
        "an intercept as float": (
            "pfds.ask",
            {**ask, "course": {**ask["course"], "intercept": 0.5}},
            "MSG-005",
        ),
        "tables as numbers": ("pfds.tables", {"counts": [1, 2]}, "MSG-005"),
        "weights as floats": (
            "pfds.model",
            {"weights": [0.5], "intercepts": [], "variances": [], "shares": []},
            "MSG-005",
        ),
        "labels of leaves that are not passed on": (
            "pfds.leaf-labels",
            labels.model_dump(exclude={"study"}),
            "MSG-004",
        ),
        "something passed on of another study": (
            "pfds.passed-on",
            {"holder": "north", "shared": {**passed, "study": bytes(32)}},
            "MSG-005",
        ),
        "something passed on of nobody": (
            "pfds.passed-on",
            {"holder": "", "shared": passed},
            "MSG-005",
        ),
        "a name of 201 characters": ("pfds.label", {"holders": ["x" * 201]}, "MSG-005"),
        "a reason of 501 characters": (
            "pfds.ended",
            {"holders": [], "left_out": [], "reason": "x" * 501},
            "MSG-005",
        ),
        "a message of another name": ("pfds.answer", ask, "MSG-004"),
    }
    tables = []
    for n_attributes, n_holders, size in TABLES:
        schema = Schema(
            [Categorical(f"a{i}", ["0", "1"]) for i in range(n_attributes)],
            Categorical("y", ["0", "1"]),
        )
        params = PFDSParams(schema, 1.0, size, n_holders=n_holders, minimum=n_holders)
        tables.append(
            {
                "n_attributes": n_attributes,
                "n_holders": n_holders,
                "size": size,
                "epsilon": repr(params.epsilon),
                "n_tables": choose_n_tables(params),
                "attributes": [
                    assign_attributes(params, STUDY, holder) for holder in range(n_holders)
                ],
            }
        )
    return {
        "study": STUDY.hex(),
        "read": describe_messages(good),
        "refused": describe_rejected(bad),
        "queries": [
            {"hex": encode(one).hex(), "digest": compute_pfds_ask_digest(one).hex()} for one in asks
        ],
        "tables": tables,
    }
