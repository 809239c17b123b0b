"""True values that must not leave the peer, wrapped so that they do not leave by accident."""

from __future__ import annotations

from typing import Generic, NoReturn, SupportsIndex, TypeVar

from shoal.errors import LocalProtocolError

T = TypeVar("T")


class Private(Generic[T]):
    """A true value, shown by its type alone, that can be neither pickled, copied nor encoded.

    A mechanism's call site is the only place for `reveal`. Two wrappers are equal only if they are the same object,
    so that comparing or hashing a state that holds one tells nothing about the value.

    Examples
    --------
    >>> age = Private(41)
    >>> age, f"{age:>3}", [age]
    (Private[int], 'Private[int]', [Private[int]])
    >>> age == Private(41), age.reveal()
    (False, 41)
    """

    __slots__ = ("__value",)

    def __init__(self, value: T) -> None:
        self.__value = value

    def reveal(self) -> T:
        """The value itself, for a mechanism."""
        return self.__value

    def __repr__(self) -> str:
        return f"Private[{type(self.__value).__name__}]"

    def __format__(self, spec: str) -> str:
        # A width or precision would be applied to the value, or would reveal its length.
        return repr(self)

    def __bool__(self) -> NoReturn:
        raise self.refusal("asked whether it is true")

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise self.refusal("copied or pickled")

    def refusal(self, deed: str) -> LocalProtocolError:
        """The error of a call site that would let the value out."""
        return LocalProtocolError(
            "PRIVATE-001",
            f"A {self!r} was about to be {deed}.",
            why="It holds a true value that must not leave the peer.",
            fix="Call reveal() where a mechanism takes it, and pass on what the mechanism returns.",
        )
