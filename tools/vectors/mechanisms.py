"""Vectors of the local mechanisms: probabilities, accounted epsilon, and encoded reports."""

from __future__ import annotations

from typing import Any

from shoal.mechanisms.calibrate import MECHANISM_NAMES, make_mechanism

SETTINGS = [(0.5, 2), (1.0, 4), (2.0, 12), (1.0, 16), (4.0, 100), (0.1, 1024), (8.0, 3)]

REPORTS: dict[str, list[tuple[float, int, str, list[int] | None]]] = {
    "random-response": [
        (1.0, 4, "03", [3]),
        (1.0, 300, "0201", [258]),
        (1.0, 4, "04", None),
        (1.0, 4, "", None),
        (1.0, 4, "0300", None),
        (1.0, 300, "2c01", None),
        (1.0, 300, "02", None),
    ],
    "rappor": [
        (2.0, 12, "0000", []),
        (2.0, 12, "0108", [0, 11]),
        (2.0, 12, "ff0f", list(range(12))),
        (2.0, 12, "0110", None),
        (2.0, 12, "01", None),
        (2.0, 12, "010000", None),
    ],
    "pq": [
        (1.0, 16, "0180", [0, 15]),
        (1.0, 9, "0001", [8]),
        (1.0, 9, "0002", None),
        (1.0, 16, "", None),
    ],
    "subset-selection": [
        (1.0, 16, "0f00", [0, 1, 2, 3]),
        (1.0, 16, "0700", None),
        (1.0, 16, "1f00", None),
        (1.0, 16, "0f", None),
    ],
}


def make_mechanisms() -> dict[str, Any]:
    """Return probabilities, accounted epsilon and encoded reports of the mechanisms."""
    parameters = []
    for name in MECHANISM_NAMES:
        for epsilon, m in SETTINGS:
            one = make_mechanism(name, epsilon, m)
            event = one.event()
            numbers = {
                key: str(part)
                for key, part in sorted(event.parameters.items())
                if key != "cardinality"
            }
            chances = {"p": str(one.p), "q": str(one.q)}
            accounted = {"epsilon_accounted": repr(event.epsilon)}
            parameters.append(
                {
                    "mechanism": name,
                    "epsilon": repr(epsilon),
                    "cardinality": m,
                    **numbers,
                    **chances,
                    **accounted,
                }
            )
    reports = [
        {
            "mechanism": name,
            "epsilon": repr(epsilon),
            "cardinality": m,
            "hex": wire,
            "supports": cells,
            "outcome": "refused" if cells is None else "read",
        }
        for name, cases in REPORTS.items()
        for epsilon, m, wire, cells in cases
    ]
    return {"denominator": str(1 << 64), "parameters": parameters, "reports": reports}
