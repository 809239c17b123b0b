"""Devices of DDML that keep their ledgers in memory: `flower` runs them as ``shoal.participant.fleet`` is run.

What is left out is what Flower's client does not do either: to write down what it has sent before it sends it. A device of this kind
may not be used: after a crash it does not know what it has spent.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from shoal import tables
from shoal.clock import SystemClock
from shoal.crypto.roster import Identity
from shoal.entropy import SystemEntropy
from shoal.participant.client import Client
from shoal.participant.fleet import parts_of
from shoal.participant.offers import Offer, fetch
from shoal.participant.peers import peer_of
from shoal.participant.wires import Device
from shoal.protocols.base import AGGREGATOR, Account, MemoryLedger, Started
from shoal.protocols.driver import Host, Outcome, Sent
from shoal.protocols.settle import Outbound
from shoal.table_files import Table
from shoal.transport.forms import Enrolment

_NAME = "device"


async def take_part(client: Client, offer: Offer, part: Table) -> int:
    """Send all updates of a device; how many that were."""
    clock, entropy, outcome = SystemClock(), SystemEntropy(), Outcome()
    identity = Identity.from_seed(entropy.bytes(32))
    await client.enrol(offer.digest, identity, Enrolment())
    peer = peer_of(offer.manifest, part, identity)
    account = Account(MemoryLedger(clock=clock), offer.manifest.digest, "rows", offer.url, offer.manifest.study.title)
    host, wire, n_sent = Host(_NAME, peer, account, (), entropy, peer.initial()), Device(client, offer.digest, identity), 0
    given: Started | Sent | None = Started()
    while given is not None:
        handled = host.handle(given, clock.now(), outcome)
        host.accept(handled)
        given = None
        for letter in handled.work:
            if isinstance(letter, Outbound):
                sent = host.send(letter, clock.now(), outcome)
                assert isinstance(sent, Sent), "nothing is refused where there is no limit"
                reply = await wire.deliver(sent.payload, letter.question)
                host.acknowledged(letter.question)
                n_sent += letter.question is not None
                given = given if reply is None else Sent(clock.now(), AGGREGATOR, _NAME, reply)
    assert not outcome.failed and not outcome.rejected, "an honest coordinator sends what can be used"
    return n_sent


async def main(url: str, data: str, n: int, at_once: int, ca: Path) -> None:
    """Have all devices take part, each over connections of its own."""
    async with Client(url, SystemClock(), SystemEntropy(), ca=ca) as client:
        offer = await fetch(client, None)
    gate = asyncio.Semaphore(at_once)

    async def one(part: Table) -> int:
        async with gate, Client(url, SystemClock(), SystemEntropy(), ca=ca) as client:
            return await take_part(client, offer, part)

    print(sum(await asyncio.gather(*map(one, parts_of(offer.manifest.study, tables.read(data), n)))))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--data")
    parser.add_argument("--participants", type=int)
    parser.add_argument("--directory", help="not used: nothing is kept")
    parser.add_argument("--at-once", type=int)
    parser.add_argument("--ca", type=Path)
    chosen = parser.parse_args()
    asyncio.run(main(chosen.url, chosen.data, chosen.participants, chosen.at_once, chosen.ca))
