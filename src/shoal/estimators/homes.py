"""What is at home with the holders of a simulation: their own rows, and what each has made of the release with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, SupportsIndex

from shoal.cells import cell_text
from shoal.estimators.inputs import EstimatorError
from shoal.names import counted
from shoal.protocols.pfds.model import never_leaves


class Homes:
    """The home models of all holders, each made when it is first asked for. They stay in the process that has the rows.

    Parameters
    ----------
    names
        Of the holders.
    make
        The home model of a holder, by its number; it knows the rows.

    Examples
    --------
    >>> homes = Homes(["north", "south"], lambda number: f"the model of {number}")
    >>> homes.of("south"), homes
    ('the model of 1', <what 2 holders have at home: never leaves>)
    """

    __slots__ = ("__made", "__make", "__numbers")

    def __init__(self, names: Sequence[Any], make: Callable[[int], Any]) -> None:
        # As everywhere, names that read alike are one holder's.
        self.__numbers = {cell_text(name): number for number, name in enumerate(names)}
        self.__make = make
        self.__made: dict[int, Any] = {}

    def of(self, holder: Any) -> Any:
        """The home model of a holder, by its name."""
        number = self.__numbers.get(cell_text(holder))
        if number is None:
            what = f"No holder of this name has rows in this fit; there are {counted(len(self.__numbers), 'holder')}."
            raise EstimatorError("USAGE-001", what, fix="Give a name of fit(X, y, holders=...); of rows that were dealt, 0, 1 and so on.")
        if number not in self.__made:
            self.__made[number] = self.__make(number)
        return self.__made[number]

    def __repr__(self) -> str:
        return f"<what {counted(len(self.__numbers), 'holder')} have at home: never leaves>"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise never_leaves("What holders have at home")
