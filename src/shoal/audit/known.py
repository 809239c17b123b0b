"""A tree of variant paper of PFDS that everyone knows, and the rows in it that an adversary can best tell apart.

A price holds whatever was answered before. So a question may be asked as if the levels above were any tree: here one whose levels all cut
a little off the first number. It is as deep as the study's trees and never wide, and it keeps all rows together. A peer draws all nodes of
a level at once. So the known trees of many studies can be drawn as one, below a root that tells them apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count

import numpy as np

from shoal.domain import Categorical
from shoal.protocols.pfds.messages import Splits
from shoal.protocols.pfds.paper import Points, prices
from shoal.protocols.pfds.params import Floats, Ints, Params
from shoal.protocols.pfds.sharing import splits_of
from shoal.protocols.pfds.tree import Level, Shape, depth_of, most_leaves

_SLICE = 1 / 64
"""How much each level of the known tree cuts off the first number."""


@dataclass(frozen=True, eq=False)
class Known:
    """The known tree of a study, or of several below one root, and the rows of a holder.

    Parameters
    ----------
    params
        The study's public figures; of several studies, with one more attribute that tells them apart.
    n
        How many studies.
    levels
        All levels; of several studies, with one more at the top.
    tables
        The rows without the unit of each study, and with it. In each study all of them reach the last leaf.
    """

    params: Params
    n: int
    levels: tuple[Level, ...]
    tables: tuple[Points, Points]

    @cached_property
    def splits(self) -> tuple[Splits, ...]:
        """The levels as a peer remembers them; of which study does not matter."""
        return tuple(splits_of(bytes(32), level, i) for i, level in enumerate(self.levels, 1))

    @cached_property
    def n_rows(self) -> Ints:
        """Rows of each class in one study, but for the unit's."""
        return np.bincount(self.tables[0].outcomes, minlength=2) // self.n

    @cached_property
    def middles(self) -> Floats:
        """Where the second class lies."""
        middles: Floats = self.tables[0].values[self.tables[0].outcomes == 1][0]
        return middles


def cut_off(params: Params, first: Sequence[Level] = ()) -> tuple[Level, ...]:
    """The levels of the known tree, below some others: a slice off the first number each; without numbers, the least categories in turn."""
    shape, levels = Shape.of(params), list(first)
    numbers = np.flatnonzero(shape.is_number)
    order = np.repeat(numbers[:1], depth_of(params)) if numbers.size else np.argsort(shape.fans, kind="stable")
    order = order[~np.isin(order, [level.attributes[0] for level in first])]
    for attribute in order[: depth_of(params) - 1].tolist():
        n = width(params, levels)
        attributes = np.full(n, attribute, np.int16)
        lows, highs = shape.active(levels, np.arange(n), attributes)
        levels.append(Level(attributes, lows + _SLICE * (highs - lows)))
    return tuple(levels)


def neighbours(params: Params, levels: tuple[Level, ...], heap: int) -> tuple[Points, Points]:
    """The rows of a holder without the unit, and with it.

    Notes
    -----
    The unit's rows have the lowest numbers and the first class. Three heaps of rows make a split of any number below its middle, and one
    above, worth the same without the unit: the first class at the lowest numbers, the second, larger by the unit, in the middle, and the
    first again at the highest. With the unit a split below the middle is worth as many rows more, and one above no more.
    """
    shape, unit = Shape.of(params), params.max_rows
    lowest = shape.lows.copy()
    for a in np.flatnonzero(shape.is_number):
        lowest[a] = shape.active(levels, np.array([width(params, levels) - 1]), np.array([a], np.int16))[0][0]
    numbers = np.stack([lowest, (lowest + shape.highs) / 2, np.nextafter(shape.highs, lowest)])
    places, sizes = np.where(shape.is_number, numbers, shape.fans - 1.0), [heap, heap + unit, heap, unit]
    whole = Points(places[np.repeat([0, 1, 2, 0], sizes)], np.repeat([0, 1, 0, 0], sizes))
    return whole.take(np.arange(len(whole) - unit)), whole


def one_study(params: Params) -> Known:
    """The known tree of a study; its heaps are larger than noise, so that no count is near 0, where data cuts it off."""
    levels = cut_off(params)
    widest = max(float(event.parameters.get("scale", 1.0)) for event in prices(params).values())
    return Known(params, 1, levels, neighbours(params, levels, min(math.ceil(8 * widest), params.size // 8)))


def many_studies(params: Params, most: int) -> Known:
    """The known trees of so many studies, without heaps; of fewer where a tree of all of them could be too large, and if need be of one."""
    fans, levels = Shape.of(params).fans, cut_off(params)
    n = min(most, most_leaves(params) // int(width(params, levels) * fans.max()))
    if n < 2:
        return Known(params, 1, levels, neighbours(params, levels, 0))
    name = next(str(i) for i in count() if str(i) not in params.columns)
    which = Categorical(name, [str(i) for i in range(n)], missing=False)
    schema = replace(params.schema, features=(*params.schema.features, which))
    wide = replace(params, schema=schema, max_depth=depth_of(params))
    levels = cut_off(wide, [Level(np.array([len(fans)], np.int16), np.zeros(1))])
    tables = []
    for table in neighbours(wide, levels, 0):
        values = np.tile(table.values, (n, 1))
        values[:, -1] = np.repeat(np.arange(n), len(table))
        tables.append(Points(values, np.tile(table.outcomes, n)))
    return Known(wide, n, levels, (tables[0], tables[1]))


def width(params: Params, levels: Sequence[Level]) -> int:
    """Nodes below some levels."""
    return Shape.of(params).n_below(levels[-1]) if levels else 1
