"""Who comes when in a simulated run: the order of the devices, the instances they draw, those under way, and where updates enter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.protocols.ddml.blocks import Arrivals
from shoal.protocols.ddml.merging import part_of
from shoal.protocols.ddml.params import Params

Ints = npt.NDArray[np.int64]
Order = Literal["shuffled", "given"] | Ints
Strategy = Literal["same", "accept", "average", "same-average"] | tuple[Literal["batch"], int]


@dataclass(frozen=True)
class Way:
    """How updates enter the instances.

    Parameters
    ----------
    n_instances
        Instances that are kept.
    part
        beta: how far an instance moves towards an update.
    is_same
        Whether an update enters the instance that was drawn, rather than any.
    one_in
        One update in so many is accepted, at random.
    batch
        So many steps are averaged before they enter; 0 where each enters by itself.
    """

    n_instances: int
    part: float
    is_same: bool = False
    one_in: int = 1
    batch: int = 0


def way_of(params: Params, strategy: Strategy | None) -> Way:
    """The study's way, or one that it is compared with.

    Notes
    -----
    Ref: DDML §V-B, Figure 3; §V-A for server-side batching.
    """
    k = params.n_instances
    if isinstance(strategy, tuple):
        if strategy[1] < 1:
            raise ValueError(f"A batch of {strategy[1]} steps has no mean")
        return Way(1, 1.0, batch=strategy[1])
    ways = {
        "same": Way(k, 1.0, is_same=True),
        "accept": Way(1, 1.0, one_in=k),
        "average": Way(k, 0.5),
        "same-average": Way(k, 0.5, is_same=True),
    }
    return Way(k, part_of(params.merge)) if strategy is None else ways[strategy]


def shuffled(numbers: Ints, entropy: Entropy) -> Ints:
    """The numbers in a random order.

    Notes
    -----
    Random words are sorted that carry the old places in their low bits. At least 32 bits are random; two that are equal keep their order.
    """
    low = np.uint64(max(1, len(numbers)).bit_length())
    keys = entropy.words(len(numbers), np.uint64) << low | np.arange(len(numbers), dtype=np.uint64)
    keys.sort()
    mixed: Ints = numbers[(keys & ((np.uint64(1) << low) - np.uint64(1))).astype(np.int64)]
    return mixed


class Line:
    """Devices in the order in which they draw.

    Parameters
    ----------
    sizes
        Rows of each device; one without rows never draws.
    n_passes
        How often each comes, where the order does not say so itself.
    order
        As in `population.Traffic`.
    """

    def __init__(self, sizes: Ints, n_passes: int, order: Order, entropy: Entropy) -> None:
        self._entropy = entropy
        self._is_shuffled = isinstance(order, str) and order == "shuffled"
        numbers = np.arange(len(sizes)) if isinstance(order, str) else np.asarray(order, np.int64)
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < len(sizes):
            raise ValueError(f"An order names a device that is not one of {len(sizes)}")
        self._numbers = numbers[sizes[numbers] > 0]
        self._passes_left = n_passes if isinstance(order, str) else 1
        self._pass = self._numbers[:0]
        self.n_draws = self._passes_left * len(self._numbers)

    def take(self, most: int) -> Ints:
        """The next devices, at most so many; fewer at the end of a pass, none at the end of all."""
        if not self._pass.size and self._passes_left:
            self._passes_left -= 1
            self._pass = shuffled(self._numbers, self._entropy) if self._is_shuffled else self._numbers
        taken, self._pass = self._pass[:most], self._pass[most:]
        return taken


class Queue:
    """Devices with an instance under way, and where what they send enters.

    Parameters
    ----------
    line
        The devices that will draw.
    way
        How updates enter.
    in_flight
        As in `population.Traffic`; fewer where fewer devices come.

    Attributes
    ----------
    drawn
        The instances that are under way at the start, in the order of their slots; none where every update comes back at once.

    Notes
    -----
    A device whose update comes back frees a slot, in which the next device draws, after the update has entered.
    """

    def __init__(self, line: Line, way: Way, in_flight: int, entropy: Entropy) -> None:
        self._line, self._way, self._entropy = line, way, entropy
        devices = line.take(0)
        while in_flight and len(devices) <= in_flight and (more := line.take(in_flight + 1 - len(devices))).size:
            devices = np.concatenate([devices, more])
        self.drawn = entropy.below_many(way.n_instances, len(devices))
        self._under_way = np.stack([devices, self.drawn.copy()])
        self._last: Ints | None = None

    def next(self, most: int) -> Arrivals:
        """The next updates that come back, at most so many; none at the end of all."""
        devices = self._line.take(most)
        instances = self._entropy.below_many(self._way.n_instances, len(devices))
        if not self.drawn.size:
            return Arrivals(devices, instances, self._places(instances), np.full(len(devices), -1))
        if devices.size:
            slots = self._entropy.below_many(len(self.drawn), len(devices))
            back = _hand_over(slots, self._under_way, np.stack([devices, instances]))
        else:
            slots, back, instances = self._drain(most)
        senders, drawn = np.ascontiguousarray(back)
        return Arrivals(senders, self._way.n_instances + slots, self._places(drawn), instances)

    def _drain(self, most: int) -> tuple[Ints, Ints, Ints]:
        """Nobody draws any more: whatever is under way comes back."""
        if self._last is None:
            self._last = shuffled(np.arange(len(self.drawn)), self._entropy)
        slots, self._last = self._last[:most], self._last[most:]
        return slots, self._under_way[:, slots], np.full(len(slots), -1)

    def _places(self, drawn: Ints) -> Ints:
        if self._way.is_same:
            return drawn
        places = self._entropy.below_many(self._way.n_instances, len(drawn))
        if self._way.one_in > 1:
            places[self._entropy.below_many(self._way.one_in, len(drawn)) > 0] = -1
        return places


def _hand_over(slots: Ints, held: Ints, new: Ints) -> Ints:
    """What is found in each slot, ``(2, m)``, when the columns of ``new`` are put one after another into the slots of ``held``."""
    order = np.argsort(slots, kind="stable")
    ordered = slots[order]
    is_first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    is_last = np.concatenate([is_first[1:], [True]])
    found = np.empty_like(new)
    found[:, order] = np.where(is_first, held[:, ordered], np.roll(new[:, order], 1, axis=1))
    held[:, ordered[is_last]] = new[:, order[is_last]]
    return found


def pick_rows(starts: Ints, devices: Ints, most: int, entropy: Entropy) -> tuple[Ints, Ints]:
    """Rows of each device, at most so many; of a device with more, any so many of them, drawn afresh. And where each device's rows begin.

    Notes
    -----
    Floyd's way, as the peer's, for all devices at once. A position is a 32-bit word times their number, which is uniform to 2^-32 of it.
    """
    first, held = starts[devices], starts[devices + 1] - starts[devices]
    sizes = np.minimum(held, most)
    row_starts = np.concatenate([[0], np.cumsum(sizes)])
    rows = first if most == 1 else np.repeat(first - row_starts[:-1], sizes) + np.arange(row_starts[-1])
    larger = np.flatnonzero(held > most)
    if larger.size:
        chosen = np.empty((len(larger), most), np.int64)
        for i in range(most):
            last = held[larger] - most + i
            words = entropy.words(len(larger), np.uint32).astype(np.uint64)
            drawn = (words * (last + 1).astype(np.uint64) >> np.uint64(32)).astype(np.int64)
            is_taken = (chosen[:, :i] == drawn[:, np.newaxis]).any(axis=1)
            chosen[:, i] = np.where(is_taken, last, drawn)
        rows[row_starts[larger][:, np.newaxis] + np.arange(most)] = first[larger][:, np.newaxis] + np.sort(chosen, axis=1)
    return rows, row_starts
