"""Vectors of AnonML: assignments that follow from a ticket, feature subsets, messages."""

from __future__ import annotations

import hashlib
from fractions import Fraction
from typing import Any

from shoal.protocols.anonml.assignment import (
    compute_thresholds,
    find_parts,
    scale_words,
    ticket_words,
    unrank_combinations,
)
from shoal.protocols.anonml.messages import AnonMLAnswer, AnonMLAsk, AnonMLPublication
from shoal.protocols.anonml.params import draw_feature_subsets
from tools.vectors.base import STUDY, describe_messages, describe_rejected

TICKETS = (
    bytes(32),
    bytes([255]) * 32,
    *(hashlib.sha256(f"ticket {i}".encode()).digest() for i in range(6)),
)
WEIGHTS = [
    [Fraction(1)],
    [Fraction(1, 3)] * 3,
    [Fraction(6, 100), Fraction(44, 100), Fraction(1, 2)],
    [Fraction(1, 12)] * 12,
]
BOUNDS = (1, 2, 15, 1000, (1 << 32) - 1, 1 << 32)
COMBINATIONS = ((4, 2), (4, 4), (12, 4), (60, 4))
SUBSETS = ((6, 2, 2, 3), (11, 5, 2, 3), (3, 4, 1, 1))


def make_anonml() -> dict[str, Any]:
    """Return assignments by ticket, feature subsets and messages."""
    tickets = []
    for ticket in TICKETS:
        words = ticket_words(STUDY, ticket)
        first, second = words[:, 0], words[:, 1]
        tickets.append(
            {
                "ticket": ticket.hex(),
                "words": [str(word) for word in words[0].tolist()],
                "parts": [
                    int(find_parts(first, compute_thresholds(weights))[0]) for weights in WEIGHTS
                ],
                "below": [int(scale_words(first, bound)[0]) for bound in BOUNDS],
                "combinations": [
                    unrank_combinations(second, n, k)[0].tolist() for n, k in COMBINATIONS
                ],
            }
        )
    subsets = [
        {
            "n_features": n,
            "n_partitions": p,
            "n_subsets": h,
            "subset_size": s,
            "subsets": draw_feature_subsets(STUDY, n, p, h, s),
        }
        for n, p, h, s in SUBSETS
    ]
    answer = AnonMLAnswer(
        study=STUDY, ticket=TICKETS[2], phase=12, question=300, report=b"\x01\x02"
    )
    good = [
        AnonMLAsk(study=STUDY, phase=0, publication=AnonMLPublication(points=(0.5, -2.0))),
        AnonMLAsk(
            study=STUDY,
            phase=12,
            publication=AnonMLPublication(cuts=((0.0, 17.25), (-1.5,)), levels=((0, 2, 1), (1, 0))),
        ),
        AnonMLAsk(study=STUDY, phase=0, publication=AnonMLPublication()),
        answer,
    ]
    body = answer.model_dump(exclude={"study"})
    shown: dict[str, object] = {"points": [], "cuts": [], "levels": []}
    bad: dict[str, tuple[str, dict[str, object], str]] = {
        "a ticket of 31 bytes": ("anonml.answer", {**body, "ticket": bytes(31)}, "MSG-005"),
        "a ticket of 33 bytes": ("anonml.answer", {**body, "ticket": bytes(33)}, "MSG-005"),
        "a negative phase": ("anonml.answer", {**body, "phase": -1}, "MSG-005"),
        "a question as float": ("anonml.answer", {**body, "question": 300.0}, "MSG-005"),
        "a report as number": ("anonml.answer", {**body, "report": 1}, "MSG-005"),
        "an answer of another type": ("anonml.reply", body, "MSG-004"),
        "an integer for a point": (
            "anonml.ask",
            {"phase": 0, "publication": {**shown, "points": [1]}},
            "MSG-003",
        ),
        "a cut that is infinite": (
            "anonml.ask",
            {"phase": 0, "publication": {**shown, "cuts": [[float("inf")]]}},
            "MSG-002",
        ),
        "cuts that are no lists": (
            "anonml.ask",
            {"phase": 0, "publication": {**shown, "cuts": [1.5]}},
            "MSG-005",
        ),
        "a negative level": (
            "anonml.ask",
            {"phase": 0, "publication": {**shown, "levels": [[-1]]}},
            "MSG-005",
        ),
        "no publication": ("anonml.ask", {"phase": 0, "publication": None}, "MSG-005"),
    }
    return {
        "study": STUDY.hex(),
        "weights": [[str(weight) for weight in weights] for weights in WEIGHTS],
        "bounds": BOUNDS,
        "combinations": COMBINATIONS,
        "tickets": tickets,
        "feature_subsets": subsets,
        "read": describe_messages(good),
        "refused": describe_rejected(bad),
    }
