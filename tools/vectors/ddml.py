"""Vectors of DDML: its messages."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.messages.base import Array
from shoal.protocols.ddml.messages import DDMLDraw, DDMLInstance, DDMLUpdate
from tools.vectors.base import STUDY, describe_messages, describe_rejected


def make_ddml() -> dict[str, Any]:
    """Return messages, and bodies that must be rejected."""
    weights = Array.from_values(np.array([0, 1, -1, 2**31 - 1, -(2**31) + 1], np.int32))
    draw = DDMLDraw(study=STUDY, id=bytes(range(16)))
    instance = DDMLInstance(study=STUDY, draw=draw.id, epoch=0, weights=weights)
    update = DDMLUpdate(study=STUDY, id=bytes([255]) * 16, epoch=1000, weights=weights)
    body = update.model_dump(exclude={"study"})
    bad: dict[str, tuple[str, dict[str, object], str]] = {
        "a draw with an id of 15 bytes": ("ddml.draw", {"id": bytes(15)}, "MSG-005"),
        "a draw without an id": ("ddml.draw", {}, "MSG-005"),
        "a draw that names its sender": (
            "ddml.draw",
            {"id": bytes(16), "sender": "peer-1"},
            "MSG-005",
        ),
        "an instance for no draw": (
            "ddml.instance",
            {"draw": None, "epoch": 0, "weights": body["weights"]},
            "MSG-005",
        ),
        "an update with an id of 17 bytes": ("ddml.update", {**body, "id": bytes(17)}, "MSG-005"),
        "an update that names its draw": ("ddml.update", {**body, "draw": bytes(16)}, "MSG-005"),
        "a negative epoch": ("ddml.update", {**body, "epoch": -1}, "MSG-005"),
        "an epoch as float": ("ddml.update", {**body, "epoch": 1000.0}, "MSG-005"),
        "weights as floats": ("ddml.update", {**body, "weights": [0.0, 1.0]}, "MSG-005"),
        "weights that are not whole": (
            "ddml.update",
            {**body, "weights": {**body["weights"], "count": 4}},
            "MSG-005",
        ),
        "a message of another name": ("ddml.step", body, "MSG-004"),
    }
    return {
        "study": STUDY.hex(),
        "read": describe_messages([draw, instance, update]),
        "refused": describe_rejected(bad),
    }
