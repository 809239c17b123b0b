"""Devices of DDML with ledgers in memory, for the benchmark ``flower``.

`benchmarks.speed.flower.ours` runs this module with the arguments of ``shoal.cli.fleet``. The
devices do not store what they send before they send it, as Flower's client does not either. Do not
use such a device: after a crash it does not know what it has spent.
"""

from __future__ import annotations

import argparse
import asyncio
from functools import partial
from pathlib import Path

from shoal.cli.fleet import split_table
from shoal.clock import SystemClock
from shoal.crypto.identity import Identity
from shoal.data import tables
from shoal.entropy import SystemEntropy
from shoal.participant.client import Client
from shoal.participant.delivery import DDMLDelivery, OutgoingAnswer, ignore_progress
from shoal.participant.driver import convert_incoming
from shoal.participant.network import parse_via
from shoal.participant.offers import Offer, fetch_offer
from shoal.protocols.base import Input, MemoryLedger, Started
from shoal.protocols.driver import Host, OutgoingMessage, ProtocolOutcome, SentMessage
from shoal.study.protocol import EncodedRows, Seat
from shoal.transport.api import Enrolment

_NAME = "device"


async def take_part(client: Client, offer: Offer, rows: EncodedRows) -> int:
    """Send all updates of a device; return their number."""
    clock, entropy, outcome = SystemClock(), SystemEntropy(), ProtocolOutcome()
    identity = Identity.from_seed(entropy.bytes(32))
    await client.enrol(offer.digest, identity, Enrolment())
    peer = offer.study.make_peer(rows, Seat(identity))
    ledger = MemoryLedger(clock=clock)
    account = ledger.account(offer.study.digest, "rows", offer.url, offer.manifest.study.title)
    host = Host(_NAME, peer, account, (), entropy, peer.initial_state())
    delivery = DDMLDelivery(client, offer.digest, identity)
    n_sent = 0

    def begin_send(outgoing: OutgoingMessage) -> bytes:
        sent = host.begin_send(outgoing, clock.now(), outcome)
        assert isinstance(sent, SentMessage), "a ledger without limits refuses nothing"
        return sent.payload

    given: Input | SentMessage | None = Started()
    while given is not None:
        handled = host.handle(given, clock.now(), outcome)
        host.commit(handled)
        given = None
        for outgoing in handled.work:
            if isinstance(outgoing, OutgoingMessage):
                delivered = await delivery.deliver(
                    OutgoingAnswer(
                        outgoing.question,
                        begin_send=partial(begin_send, outgoing),
                        read_stored=lambda: None,
                        on_progress=ignore_progress,
                    )
                )
                assert delivered.error is None, delivered.error
                host.mark_acknowledged(outgoing.question)
                n_sent += outgoing.question is not None
                if delivered.reply is not None:
                    given = convert_incoming(delivered.reply, clock.now())
    assert not outcome.failed and not outcome.rejected, "an honest coordinator keeps the rules"
    return n_sent


async def main(url: str, data: str, n: int, at_once: int, ca: Path) -> None:
    """Run all devices, each over its own connections."""
    entropy = SystemEntropy()

    def open_client() -> Client:
        network_path = parse_via(None, url, entropy, ca=ca)
        return Client(url, SystemClock(), entropy, network_path=network_path)

    async with open_client() as client:
        offer = await fetch_offer(client, None)
    gate = asyncio.Semaphore(at_once)

    async def run_device(rows: EncodedRows) -> int:
        async with gate, open_client() as client:
            return await take_part(client, offer, rows)

    parts = split_table(offer.manifest.study, tables.read_table_file(data), n)
    rows = map(offer.study.encode_rows, parts)
    print(sum(await asyncio.gather(*map(run_device, rows))))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--data")
    parser.add_argument("--participants", type=int)
    parser.add_argument("--directory", help="ignored: devices store nothing")
    parser.add_argument("--at-once", type=int)
    parser.add_argument("--ca", type=Path)
    chosen = parser.parse_args()
    asyncio.run(main(chosen.url, chosen.data, chosen.participants, chosen.at_once, chosen.ca))
