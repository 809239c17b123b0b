"""What may be said about weights and epochs that arrive, before anything is done with them."""

from __future__ import annotations

from typing import Protocol

from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array
from shoal.protocols.ddml.merging import LIMIT, Weights
from shoal.protocols.ddml.params import Params

WINDOW = 10
"""How many epochs an update may be on its way; ids of updates need to be remembered no longer."""


class Judge(Protocol):
    """What refuses spam: `shoal.protocols.ddml.spam.Filter`."""

    def judge_all(self, weights: Weights, instances: Weights, epoch: int) -> str | None:
        """Why an update ``(p,)`` of an epoch does not belong to the instances ``(k, p)``; None where it may."""
        ...


def epoch_of(params: Params, n_merged: int) -> int:
    """The epoch after so many merged updates."""
    return n_merged // params.epoch_updates


def is_stale(epoch: int, now: int) -> bool:
    """Whether an epoch lies too far back. An honest device can be that slow."""
    return epoch < now - WINDOW


def read_weights(array: Array, params: Params) -> Weights:
    """The weights of a model of this study; its sender's error where they are of another number, kind or range."""
    weights: Weights = array.expect("int32", params.n_weights)
    if weights.min() < -LIMIT:
        raise RemoteProtocolError(
            "MSG-005", "A model has a weight out of range.", why=f"Weights lie between -{LIMIT} and {LIMIT}, in units of the grid."
        )
    return weights


def not_begun(who: str, epoch: int, now: int) -> RemoteProtocolError:
    """The refusal of an update that says to come from the future."""
    return RemoteProtocolError("DDML-001", f"{who} sends an update of epoch {epoch}; this is epoch {now}.")
