"""How a study ends: the model as it travels, what an aggregator has come to, and how it tells everyone.

A study that fails is given up: everyone is told why, and has as long to hear of it as for any other step; then the aggregator gives up,
and with it what has not left by then.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

import numpy as np

from shoal.entropy import Entropy
from shoal.errors import RemoteProtocolError, SpecError
from shoal.messages.base import Record
from shoal.names import counted
from shoal.protocols.base import EVERYONE, Abort, Aggregator, Effects, Finish, Moment, Send, WakeAt
from shoal.protocols.pfds.messages import MAX_REASON, MESSAGES, Ended, Left, SharedModel, floats_in, floats_of
from shoal.protocols.pfds.model import Model
from shoal.protocols.pfds.params import Ints, Params
from shoal.protocols.sums.gathering import Failure

LARGEST_WEIGHT, LARGEST_VARIANCE = 1e6, 1e12
"""More than any that is learned; with less, nothing that is computed at home overflows."""
_ROUNDING = 1e-6


def shared(study: bytes, model: Model) -> SharedModel:
    """The model as it is published."""
    return SharedModel(
        study=study,
        weights=floats_in(model.weights.ravel()),
        intercepts=floats_in(model.intercepts),
        variances=floats_in(model.variances.ravel()),
        shares=floats_in(model.shares),
    )


def model_of(params: Params, message: SharedModel) -> Model:
    """The model that was published, if it is one of the study; otherwise the sender's error."""
    cells, models = params.n_cells, params.n_models
    weights, variances = (floats_of(array, cells * models).reshape(cells, models) for array in (message.weights, message.variances))
    intercepts, shares = floats_of(message.intercepts, models), floats_of(message.shares, cells)
    if max(np.abs(weights).max(), np.abs(intercepts).max()) > LARGEST_WEIGHT:
        raise _impossible("a weight is larger than any that is learned")
    if not 0 <= variances.min() <= variances.max() <= LARGEST_VARIANCE:
        raise _impossible("a variance is negative, or larger than any that is learned")
    if shares.min() < 0 or shares.max() > 1 or np.abs(np.add.reduceat(shares, params.starts[:-1]) - 1).max() > _ROUNDING:
        raise _impossible("the shares of the cells of a feature do not add up to 1")
    return Model(params, weights, intercepts, variances, shares)


def check_number(params: Params, n: int) -> None:
    """Refuse more or fewer holders than the study has."""
    if n != params.n_holders:
        raise SpecError(
            "PFDS-005",
            f"{counted(n, 'holder')} {'was' if n == 1 else 'were'} given to a study that has n_holders = {params.n_holders}.",
            why="What each is asked, and how few are enough, is made for that many.",
            fix="Give all that the study has: one without rows, or one that is away, is a holder too.",
        )


def _impossible(why: str) -> RemoteProtocolError:
    return RemoteProtocolError("MSG-005", "A model was published that cannot have been learned.", why=f"In it, {why}.")


@dataclass(frozen=True)
class Published:
    """What a study of variant plus has come to.

    Parameters
    ----------
    model
        What was learned.
    answers
        The noisy sums of every question; with trust local, the tables of each holder that shared, in order.
    n_answering
        How many holders were in each sum; with trust local, how many shared.
    left_out
        Holders of whom something is missing, and what.
    """

    model: Model
    answers: tuple[Ints, ...]
    n_answering: tuple[int, ...]
    left_out: tuple[Left, ...]


class Publishing(Record):
    """How far the end is.

    Parameters
    ----------
    is_over
        Whether nothing more is asked.
    failed, until
        Why nothing was learned, and until when others may hear of it.
    """

    is_over: bool = False
    failed: Failure | None = None
    until: Moment | None = None


P = TypeVar("P", bound=Publishing)


class Publisher(Aggregator[P]):
    """An aggregator that publishes what was learned, or gives up.

    Parameters
    ----------
    params
        The public figures of the study.
    study
        Digest of the manifest.
    names
        The holders that may share, in the order of the roster: as many as the study has.
    patience
        How long it waits for each step.

    Raises
    ------
    SpecError
        ``PFDS-005``: there are more or fewer names than holders.
    """

    messages = MESSAGES

    def __init__(self, params: Params, study: bytes, names: tuple[str, ...], patience: timedelta) -> None:
        check_number(params, len(names))
        self.params = params
        self.study = study
        self.names = names
        self.patience = patience

    def ticked(self, state: P, now: datetime, entropy: Entropy) -> tuple[P, Effects]:
        if state.failed is not None and state.until is not None and now >= state.until:
            return state, (Abort(RemoteProtocolError(state.failed.code, state.failed.what, why=state.failed.why)),)
        return (state, ()) if state.is_over else self.waited(state, now)

    @abstractmethod
    def waited(self, state: P, now: datetime) -> tuple[P, Effects]:
        """A moment has come in a study that is not over."""

    def publish(self, state: P, published: Published) -> tuple[P, Effects]:
        """Tell everyone what was learned, and who is missing in it. Nothing more is asked."""
        missing = {left.holder for left in published.left_out}
        holders = tuple(name for name in self.names if name not in missing)
        ended = Ended(study=self.study, holders=holders, left_out=published.left_out)
        model = shared(self.study, published.model)
        return state.replace(is_over=True), (Send(EVERYONE, model), Send(EVERYONE, ended), Finish(published))

    def give_up(self, state: P, failed: Failure, now: datetime) -> tuple[P, Effects]:
        """Tell everyone why there is nothing. What was sent is spent, and is not asked again."""
        until, ended = now + self.patience, Ended(study=self.study, reason=failed.what[:MAX_REASON])
        return state.replace(is_over=True, failed=failed, until=until), (Send(EVERYONE, ended), WakeAt(until))
