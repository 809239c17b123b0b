"""Arrival order, updates in flight, and target instances.

`simulate` asks it which device sends the next update, which instance it drew, and which instance
the update is merged into.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.protocols.ddml.merging import find_blend_factor
from shoal.protocols.ddml.params import DDMLParams
from shoal.protocols.ddml.population.arrays import ArrivalBatch

Ints = npt.NDArray[np.int64]
Order = Literal["shuffled", "given"] | Ints
StrategyChoice = Literal["same", "accept", "average", "same-average"] | tuple[Literal["batch"], int]


@dataclass(frozen=True)
class MergeStrategy:
    """The merging of updates into the instances.

    Parameters
    ----------
    n_instances
        Number of instances.
    part
        beta: the part of the way that an instance moves towards an update.
    is_same
        Whether an update is merged into the instance that was drawn, rather than a random one.
    one_in
        The probability to accept an update is one over this number.
    batch
        Number of steps that are averaged before they are merged; 0 if each is merged separately.
    """

    n_instances: int
    part: float
    is_same: bool = False
    one_in: int = 1
    batch: int = 0


def make_merge_strategy(params: DDMLParams, strategy: StrategyChoice | None) -> MergeStrategy:
    """Return the study's strategy, or one that it is compared with.

    Notes
    -----
    Ref: DDML §V-B, Figure 3; §V-A for server-side batching.
    """
    k = params.n_instances
    if isinstance(strategy, tuple):
        if strategy[1] < 1:
            raise ValueError(f"A batch of {strategy[1]} steps has no mean")
        return MergeStrategy(1, 1.0, batch=strategy[1])
    alternatives = {
        "same": MergeStrategy(k, 1.0, is_same=True),
        "accept": MergeStrategy(1, 1.0, one_in=k),
        "average": MergeStrategy(k, 0.5),
        "same-average": MergeStrategy(k, 0.5, is_same=True),
    }
    if strategy is None:
        return MergeStrategy(k, find_blend_factor(params.merge))
    return alternatives[strategy]


def shuffle_numbers(numbers: Ints, entropy: Entropy) -> Ints:
    """Return the numbers in a random order.

    Notes
    -----
    It sorts random words with the old positions in their low bits. At least 32 bits are random; two
    equal words keep their order.
    """
    low = np.uint64(max(1, len(numbers)).bit_length())
    keys = entropy.words(len(numbers), np.uint64) << low | np.arange(len(numbers), dtype=np.uint64)
    keys.sort()
    mixed: Ints = numbers[(keys & ((np.uint64(1) << low) - np.uint64(1))).astype(np.int64)]
    return mixed


class ArrivalOrder:
    """Devices in the order in which they draw.

    Parameters
    ----------
    sizes
        Rows of each device; one without rows never draws.
    n_passes
        Number of draws of each device, unless the order is given as numbers.
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

    def take(self, max_arrivals: int) -> Ints:
        """Return up to ``max_arrivals`` next devices; fewer at the end of a pass; then none."""
        if not self._pass.size and self._passes_left:
            self._passes_left -= 1
            self._pass = (
                shuffle_numbers(self._numbers, self._entropy)
                if self._is_shuffled
                else self._numbers
            )
        taken, self._pass = self._pass[:max_arrivals], self._pass[max_arrivals:]
        return taken


class InFlightQueue:
    """Devices with an instance in flight, and the instances that updates are merged into.

    Parameters
    ----------
    arrival_order
        The devices that will draw.
    in_flight
        As in `population.Traffic`; fewer if there are fewer devices.

    Attributes
    ----------
    initial_draws
        The instances in flight at the start, in the order of their slots; empty if every update
        returns immediately.

    Notes
    -----
    A device with a returned update frees a slot, in which the next device draws, after the update
    is merged.
    """

    def __init__(
        self, arrival_order: ArrivalOrder, strategy: MergeStrategy, in_flight: int, entropy: Entropy
    ) -> None:
        self._arrival_order, self._strategy, self._entropy = arrival_order, strategy, entropy
        devices = arrival_order.take(0)
        while (
            in_flight
            and len(devices) <= in_flight
            and (more := arrival_order.take(in_flight + 1 - len(devices))).size
        ):
            devices = np.concatenate([devices, more])
        self.initial_draws = entropy.below_many(strategy.n_instances, len(devices))
        self._in_flight = np.stack([devices, self.initial_draws.copy()])
        self._last: Ints | None = None

    def take(self, max_arrivals: int) -> ArrivalBatch:
        """Return up to ``max_arrivals`` next updates that return; none at the end."""
        devices = self._arrival_order.take(max_arrivals)
        instances = self._entropy.below_many(self._strategy.n_instances, len(devices))
        if not self.initial_draws.size:
            return ArrivalBatch(
                devices, instances, self._draw_slots(instances), np.full(len(devices), -1)
            )
        if devices.size:
            slots = self._entropy.below_many(len(self.initial_draws), len(devices))
            returned = _swap_slots(slots, self._in_flight, np.stack([devices, instances]))
        else:
            slots, returned, instances = self._drain(max_arrivals)
        senders, drawn = np.ascontiguousarray(returned)
        return ArrivalBatch(
            senders, self._strategy.n_instances + slots, self._draw_slots(drawn), instances
        )

    def _drain(self, max_arrivals: int) -> tuple[Ints, Ints, Ints]:
        """Return the remaining updates in flight; no device draws any more."""
        if self._last is None:
            self._last = shuffle_numbers(np.arange(len(self.initial_draws)), self._entropy)
        slots, self._last = self._last[:max_arrivals], self._last[max_arrivals:]
        return slots, self._in_flight[:, slots], np.full(len(slots), -1)

    def _draw_slots(self, drawn: Ints) -> Ints:
        if self._strategy.is_same:
            return drawn
        slots = self._entropy.below_many(self._strategy.n_instances, len(drawn))
        if self._strategy.one_in > 1:
            slots[self._entropy.below_many(self._strategy.one_in, len(drawn)) > 0] = -1
        return slots


def _swap_slots(slots: Ints, in_flight: Ints, new: Ints) -> Ints:
    """Put the columns of ``new`` into slots, one after another; return what each replaces.

    ``in_flight`` is changed, and the result is ``(2, m)``.
    """
    order = np.argsort(slots, kind="stable")
    ordered = slots[order]
    is_first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    is_last = np.concatenate([is_first[1:], [True]])
    swapped = np.empty_like(new)
    swapped[:, order] = np.where(is_first, in_flight[:, ordered], np.roll(new[:, order], 1, axis=1))
    in_flight[:, ordered[is_last]] = new[:, order[is_last]]
    return swapped


def pick_rows(starts: Ints, devices: Ints, max_rows: int, entropy: Entropy) -> tuple[Ints, Ints]:
    """Return up to ``max_rows`` rows of each device, and the start of each device's rows.

    If a device has more, they are a new random sample.

    Notes
    -----
    Floyd's algorithm, as in the peer, for all devices together. A position is a 32-bit word times
    their number, which is uniform to 2^-32 of it.
    """
    first, n_rows = starts[devices], starts[devices + 1] - starts[devices]
    sizes = np.minimum(n_rows, max_rows)
    row_starts = np.concatenate([[0], np.cumsum(sizes)])
    rows = (
        first
        if max_rows == 1
        else np.repeat(first - row_starts[:-1], sizes) + np.arange(row_starts[-1])
    )
    larger = np.flatnonzero(n_rows > max_rows)
    if larger.size:
        chosen = np.empty((len(larger), max_rows), np.int64)
        for i in range(max_rows):
            last = n_rows[larger] - max_rows + i
            words = entropy.words(len(larger), np.uint32).astype(np.uint64)
            drawn = (words * (last + 1).astype(np.uint64) >> np.uint64(32)).astype(np.int64)
            is_taken = (chosen[:, :i] == drawn[:, np.newaxis]).any(axis=1)
            chosen[:, i] = np.where(is_taken, last, drawn)
        rows[row_starts[larger][:, np.newaxis] + np.arange(max_rows)] = first[larger][
            :, np.newaxis
        ] + np.sort(chosen, axis=1)
    return rows, row_starts
