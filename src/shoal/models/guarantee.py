"""The guarantee that a model's file states, in words. It is the file's word: only a study's manifest and a signature say more."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from shoal.names import counted
from shoal.privacy.rounding import show

_Epsilon = Annotated[float, Field(ge=0, le=1e12)]
_Delta = Annotated[float, Field(ge=0, le=1)]
_Words = Annotated[str, Field(max_length=4000)]


class _Part(BaseModel):
    """Part of a statement: fields of exact types. A statement has more of them, which are kept as they are."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow", allow_inf_nan=False, hide_input_in_errors=True)


class Price(_Part):
    """An epsilon and a delta."""

    epsilon: _Epsilon
    delta: _Delta


class Crowd(Price):
    """What shuffling makes of it, among so many honest messages."""

    n: Annotated[int, Field(ge=1)]


class Guarantee(Price):
    """What a statement must say to be one: an epsilon never stands without unit, relation and adversary."""

    title: _Words
    unit: Literal["person", "record", "update", "weight"]
    relation: Literal["replace", "add-remove"]
    adversary: _Words
    how: _Words
    everything: Price
    shuffled: Crowd | None = None
    provided: _Words = ""
    simulated: bool = False

    def __str__(self) -> str:
        scope = f"unit {self.unit}, relation {self.relation}, against {self.adversary}"
        stated = f"{_price(self)} ({self.how}; {scope})"
        if self.unit == "weight":
            stated = f"{_price(self.everything)} for all that one participant sends; {_price(self)} for each weight by itself ({scope})"
        if self.shuffled is not None:
            messages = counted(self.shuffled.n, "honest message")
            stated += f"; {_price(self.shuffled)} against those who see only a shuffled batch of {messages}"
        return stated + (f"; provided that {self.provided}" if self.provided else "")


def _price(price: Price) -> str:
    return f"epsilon {show(price.epsilon)}, delta {show(price.delta)}"
