"""Updates that are merged together: what becomes of each, and the instances after all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.coordinator.models.base import Arriving, Body, Merged, after

Name = tuple[int, bytes]
"""An update's epoch and id."""


def settled(updates: Sequence[Arriving], new: set[Name], n_merged: int, kept_from: int) -> list[Merged]:
    """What becomes of each, in order.

    Parameters
    ----------
    updates
        As they came. Of several with the same name the first counts.
    new
        The names that were not known.
    n_merged, kept_from
        How many were merged before, and the first epoch whose names are remembered.

    Examples
    --------
    >>> one, old = Arriving(0, b"id", 7, b""), Arriving(0, b"id", 3, b"")
    >>> [outcome for outcome, n_merged in settled([one, old, one], {(7, b"id")}, 0, 4)]
    ['merged', 'stale', 'repeated']
    """
    outcomes, left = [], set(new)
    for one in updates:
        name = (one.epoch, one.id)
        if name in left:
            left.remove(name)
            n_merged += 1
            outcomes.append(Merged("merged", n_merged))
        else:
            outcomes.append(Merged("stale" if one.epoch < kept_from else "repeated", n_merged))
    return outcomes


def going_in(updates: Sequence[Arriving], outcomes: Sequence[Merged]) -> list[Arriving]:
    """Those that are merged."""
    return [one for one, became in zip(updates, outcomes, strict=True) if became.outcome == "merged"]


def changed(updates: Sequence[Arriving], instances: Mapping[int, Body], part: float) -> dict[int, Body]:
    """Slots and their instances after all updates.

    Parameters
    ----------
    updates
        Those that are merged, in order.
    instances
        By slot, before; nothing where an update replaces its instance.
    part
        See `shoal.coordinator.models.base.ModelStore.merge`.
    """
    now: dict[int, Body] = {}
    for slot, _, _, update in updates:
        now[slot] = update if part == 1 else after(now[slot] if slot in now else instances[slot], update, part)
    return now
