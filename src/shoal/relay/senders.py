"""How many packets of a study came from where in the open window: in memory alone, and forgotten with the window."""

from __future__ import annotations

from collections import Counter
from ipaddress import IPv6Address, ip_address

_REST = 64
"""Whoever has one address of IPv6 can have all that differ in these last bits alone."""


class Senders:
    """Bounds what one sender can have a relay keep.

    Examples
    --------
    >>> senders = Senders()
    >>> [senders.admit(0, "192.0.2.1", 2) for _ in range(3)], senders.admit(1, "192.0.2.1", 2)
    ([True, True, False], True)
    """

    def __init__(self) -> None:
        self._phase, self._counts = 0, Counter[str]()

    def begin(self, phase: int) -> None:
        """Forget what was counted of another phase."""
        if phase != self._phase:
            self._phase, self._counts = phase, Counter()

    def admit(self, phase: int, address: str, most: int) -> bool:
        """Count a packet of a phase; False where as many have come from an address as may."""
        self.begin(phase)
        sender = sender_of(address)
        if self._counts[sender] >= most:
            return False
        self._counts[sender] += 1
        return True

    def take_back(self, phase: int, address: str) -> None:
        """Do not count a packet that was not kept."""
        if phase == self._phase:
            self._counts -= Counter([sender_of(address)])


def sender_of(address: str) -> str:
    """Whom an address stands for: of IPv6, the network that one subscriber has.

    Examples
    --------
    >>> sender_of("192.0.2.7"), sender_of("2001:db8:1:2:3:4:5:6"), sender_of("::ffff:192.0.2.7"), sender_of("a socket")
    ('192.0.2.7', '2001:db8:1:2::', '192.0.2.7', 'a socket')
    """
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(IPv6Address(int(found) >> _REST << _REST))
