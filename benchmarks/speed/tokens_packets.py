"""Anonymous packets end to end through a relay, over TLS: processor time of participants, relay and coordinator for each packet.

A participant mints and seals its packet and posts it on a connection of its own. The relay writes it to its spool and hands all over in one
shuffled batch. The coordinator opens, verifies, stores and counts it. Coordinator and relay are processes as users start them; what they do
besides, meanwhile, is in their figures. Registration is not: see ``register_ms`` and ``issue_ms``.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from benchmarks.measure import Measure
from benchmarks.speed.loopback_tls import make_certificate
from benchmarks.speed.processes import Program, ending, free_ports, until
from benchmarks.speed.server_runs import ROOT
from shoal.clock import SystemClock
from shoal.coordinator.keys import Keys
from shoal.coordinator.publishing import first_start
from shoal.coordinator.store.opening import open_store
from shoal.crypto.credentials import Credential, Issuer, Registration
from shoal.entropy import Entropy, SystemEntropy
from shoal.messages.codec import encode
from shoal.participant.client import Client
from shoal.participant.via import Via, via_of
from shoal.protocols.anonml.assignment import words_of
from shoal.protocols.anonml.messages import Answer
from shoal.study.anonml import script_of
from shoal.study.anonymity import Slots, scope_of
from shoal.study.manifest import Manifest
from shoal.transport.packets import Packet, packet_size

N_PACKETS, N_AT_ONCE = 400, 16
PATIENCE = 60
_WAIT_SECONDS = 120.0

_STUDY = """
title = "How old is whoever answers?"
purpose = "To measure."
contact = "a@example.org"
protocol = "anonml"
[label]
name = "opened"
values = ["no", "yes"]
[[feature]]
name = "age"
range = [0, 100]
bins = [20, 30, 40, 50, 60, 70]
[privacy]
epsilon = 2.0
[participation]
minimum = 100
size = 100_000
"""


def measures() -> Iterator[Measure]:
    """Milliseconds of each party, and of all."""
    programs: list[Program] = []
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder, ending(programs):
        spent = _spent(Path(folder), programs)
    for who, seconds in spent.items():
        yield Measure("tokens", f"packet_cpu_ms_{who}", 1000 * seconds / N_PACKETS, "ms", "lower")
    yield Measure("tokens", "ohttp_cpu_ms_per_packet", 1000 * sum(spent.values()) / N_PACKETS, "ms", "lower")


def _spent(home: Path, programs: list[Program]) -> dict[str, float]:
    """Processor seconds of each party for all packets."""
    (home / "study.toml").write_text(_STUDY)
    certificate, key = make_certificate(home)
    key.chmod(0o600)
    (port, relay_port), store = free_ports(2), home / "coordinator.db"
    tls = ("--tls-cert", certificate, "--tls-key", key, "--json")
    url, relay_url = (f"https://127.0.0.1:{one}" for one in (port, relay_port))
    serve = ("serve", home / "study.toml", "--port", port, "--store", f"sqlite:{store}", "--patience", PATIENCE, "--relay", relay_url)
    coordinator = _started(programs, home / "coordinator.log", *serve, *tls)
    relay = _started(
        programs, home / "relay.log", "relay", "--to", url, "--port", relay_port, "--spool", home / "relay.db", "--ca", certificate, *tls
    )
    with open_store(f"sqlite:{store}") as kept:
        secrets, _ = first_start(kept, SystemEntropy())
        (hosted,) = kept.studies()
    manifest, issuer = Manifest.from_bytes(hosted.manifest), Keys(secrets.signing_seed).issuer
    people = [_credential(issuer, manifest, SystemEntropy()) for _ in range(N_PACKETS)]
    via = via_of(None, url, SystemEntropy(), ca=certificate, manifest=manifest)
    cpu, began = {"coordinator": coordinator.cpu(), "relay": relay.cpu()}, time.process_time()
    asyncio.run(_post(manifest, people, url, certificate, via))
    participants = time.process_time() - began
    if not until(lambda: _is_counted(store), _WAIT_SECONDS, programs):
        raise RuntimeError(f"not all of {N_PACKETS} packets were counted:\n{relay.said}\n{coordinator.said}")
    return {"participant": participants, "relay": relay.cpu() - cpu["relay"], "coordinator": coordinator.cpu() - cpu["coordinator"]}


def _started(programs: list[Program], log: Path, *words: object) -> Program:
    """A command of shoal that listens."""
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    program = Program([sys.executable, "-m", "shoal", *map(str, words)], environment, log)
    programs.append(program)
    if not until(lambda: '"address"' in program.said, _WAIT_SECONDS, [program]):
        raise RuntimeError("a program of the benchmark does not listen")
    return program


def _credential(issuer: Issuer, manifest: Manifest, entropy: Entropy) -> Credential:
    """A credential by the coordinator's own issuer."""
    registration, scope = Registration.draw(entropy), scope_of(manifest)
    return registration.accept(issuer.key, scope, issuer.issue(scope, registration.commitment(issuer.key, scope), 0, entropy))


async def _post(manifest: Manifest, people: list[Credential], url: str, ca: Path, via: Via) -> None:
    """Have everyone mint, seal and post its packet."""
    study, slots, script, entropy = manifest.digest, Slots(manifest), script_of(manifest.study, manifest.digest), SystemEntropy()
    questions, size = script.questions(0, script.publish(())), packet_size(manifest)
    gate = asyncio.Semaphore(N_AT_ONCE)
    async with Client(url, SystemClock(), entropy, ca=ca, via=via) as client:
        await via.check(manifest)

        async def one(person: Credential) -> None:
            async with gate:
                context = slots.context(0)
                ticket = slots.ticket(person.pseudonym(context), person.place)
                (number,) = script.asked(0, int(script.group_of(0, words_of(study, ticket))[0]))
                mechanism = questions[number].mechanism
                assert mechanism is not None
                report = mechanism.encode(mechanism.report(0, entropy))
                answer = encode(Answer(study=study, ticket=ticket, phase=0, question=number, report=report))
                packet = Packet(person.mint(context, answer, entropy), person.place, answer).to_bytes(size)
                await via.post_packet(study.hex(), via.seal(study.hex(), packet), client)

        await asyncio.gather(*(one(person) for person in people))


def _is_counted(store: Path) -> bool:
    """Whether the coordinator has taken all packets, and folded them in."""
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as db:
        (accepted,), (waiting,) = (
            db.execute(query).fetchone() for query in ("SELECT n_accepted FROM standing", "SELECT count(*) FROM held")
        )
    return bool(accepted == N_PACKETS and waiting == 0)
