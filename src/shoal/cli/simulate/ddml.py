"""DDML in the output of ``shoal simulate``: its model and the traffic of its devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.cli.simulate.protocol import ProtocolView
from shoal.text import format_count


def format_model_lines(result: Mapping[str, Any]) -> list[str]:
    """Return the lines about the model and the traffic."""
    return [
        f"model     {_describe_weights(result['points'])}",
        f"traffic   {_describe_traffic(result)}",
    ]


def _describe_weights(points: Sequence[Mapping[str, Any]]) -> str:
    """Return the weights and instances of the model, and the noise of an update."""
    first = points[0]
    weights = format_count(first["weights"], "weight")
    if len(points) > 1:
        return f"{weights}; noise as below"
    noise = "no noise" if first["mechanism"] is None else f"noise by {first['mechanism']}"
    kept = f"in {format_count(first['n_instances'], 'instance')} ({first['merge']})"
    return (
        f"{weights} {kept}; learning rate {first['learning_rate']:.4g}, clip "
        f"{first['clip']:.4g}, {noise}"
    )


def _describe_traffic(result: Mapping[str, Any]) -> str:
    order = "in random order" if result["order"] == "shuffled" else "in the order of the table"
    others = format_count(result["in_flight"], "other update")
    return f"devices arrive {order}, with {others} in flight"


VIEW = ProtocolView("ddml", format_model_lines, has_devices=True)
