"""`Private[T]`: a value that cannot be printed, copied or serialised.

Peers wrap true values that must not leave the device, so that they do not leave by accident. Only
the call site of a mechanism may call `Private.reveal`.
"""

from __future__ import annotations

from typing import Generic, NoReturn, SupportsIndex, TypeVar

from shoal.errors import LocalProtocolError

T = TypeVar("T")


class Private(Generic[T]):
    """A true value that shows only its type and cannot be pickled, copied or encoded.

    Two wrappers are equal only if they are the same object, so that comparing or hashing a state
    that contains one reveals nothing about the value.

    Only the call site of a mechanism may call `reveal`.

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
        """Return the value, for a mechanism."""
        return self.__value

    def __repr__(self) -> str:
        return f"Private[{type(self.__value).__name__}]"

    def __format__(self, spec: str) -> str:
        # A width or precision would be applied to the value, or would reveal its length.
        return repr(self)

    def __bool__(self) -> NoReturn:
        raise self.leak_error("asked whether it is true")

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise self.leak_error("copied or pickled")

    def leak_error(self, action: str) -> LocalProtocolError:
        """Return the error of a call site that would leak the value."""
        return LocalProtocolError(
            "PRIVATE-001",
            f"A {self!r} was about to be {action}.",
            why="It contains a true value that must not leave the peer.",
            fix="Call reveal() only to pass the value to a mechanism; send the mechanism's output.",
        )
