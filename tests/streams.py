"""Randomness for two runs that are to draw the same: for each machine one stream, whatever number its inputs have."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.entropy import SeededEntropy


class Streams(SeededEntropy):
    """A seeded source from whose seed every machine has its stream, by who it belongs to.

    A driver gives each input a stream by its number. One that rings alarms, or hears of things in another order, would number otherwise
    than `run_local`; what a machine draws, it draws in the same order over every driver.

    Parameters
    ----------
    seed
        That of all machines.
    owners
        Whose a machine is, by the name that its driver has for it: at home every machine has the same, and in memory the coordinator's.
    """

    def __init__(self, seed: str, owners: Mapping[str, str]) -> None:
        super().__init__(f"{seed} of {sorted(owners.values())}")
        self._seed, self._owners = seed, owners
        self._streams: dict[str, SeededEntropy] = {}

    def spawn(self, *path: int | str) -> SeededEntropy:
        if path[0] != "machine":
            return super().spawn(*path)
        name = str(path[1])
        owner = self._owners.get(name, name)
        if owner not in self._streams:
            self._streams[owner] = SeededEntropy(f"{self._seed}, the machine of {owner}")
        return self._streams[owner]
