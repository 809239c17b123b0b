"""Anonymous packets through a relay over TLS: processor time of each party per packet.

A participant mints and seals its packet and posts it on a separate connection. The relay writes it
to its spool and delivers all packets in one shuffled batch. The coordinator opens, verifies, stores
and counts it. Coordinator and relay are processes as users start them; their other work is included
in the figures. Registration is not: see ``register_ms`` and ``issue_ms``.
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
from benchmarks.speed.server.runs import ROOT
from shoal.clock import SystemClock
from shoal.coordinator.enrolment import CoordinatorKeys
from shoal.coordinator.publishing import load_or_create_secrets
from shoal.coordinator.store import open_store
from shoal.crypto.credentials.issuance import Credential, Issuer, Registration
from shoal.entropy import Entropy, SystemEntropy
from shoal.messages.codec import encode
from shoal.participant.client import Client
from shoal.participant.network import NetworkPath, parse_via
from shoal.protocols.anonml.assignment import ticket_words
from shoal.protocols.anonml.messages import AnonMLAnswer
from shoal.study.anonml import build_script
from shoal.study.delivery import TokenSlots, compute_packet_size, compute_scope
from shoal.study.handle import StudyHandle
from shoal.study.manifest import Manifest
from shoal.transport.packets import Packet

N_PACKETS, N_AT_ONCE = 400, 16
PATIENCE = 60
_WAIT_SECONDS = 120.0

_STUDY = """
title = "How old are you?"
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
    """Yield milliseconds of each party, and of all."""
    programs: list[Program] = []
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder, ending(programs):
        spent = _spent(Path(folder), programs)
    for who, seconds in spent.items():
        yield Measure("tokens", f"packet_cpu_ms_{who}", 1000 * seconds / N_PACKETS, "ms", "lower")
    yield Measure(
        "tokens", "ohttp_cpu_ms_per_packet", 1000 * sum(spent.values()) / N_PACKETS, "ms", "lower"
    )


def _spent(home: Path, programs: list[Program]) -> dict[str, float]:
    """Return processor seconds of each party for all packets."""
    (home / "study.toml").write_text(_STUDY)
    certificate, key = make_certificate(home)
    key.chmod(0o600)
    (port, relay_port), store = free_ports(2), home / "coordinator.db"
    tls = ("--tls-cert", certificate, "--tls-key", key, "--json")
    url, relay_url = (f"https://127.0.0.1:{one}" for one in (port, relay_port))
    serve = (
        "serve",
        home / "study.toml",
        "--port",
        port,
        "--store",
        f"sqlite:{store}",
        "--patience",
        PATIENCE,
        "--relay",
        relay_url,
    )
    coordinator = _start_command(programs, home / "coordinator.log", *serve, *tls)
    relay = _start_command(
        programs,
        home / "relay.log",
        "relay",
        "--to",
        url,
        "--port",
        relay_port,
        "--spool",
        home / "relay.db",
        "--ca",
        certificate,
        *tls,
    )
    with open_store(f"sqlite:{store}") as kept:
        secrets, _ = load_or_create_secrets(kept, SystemEntropy())
        (hosted,) = kept.list_studies()
    manifest, issuer = (
        Manifest.from_bytes(hosted.manifest),
        CoordinatorKeys(secrets.signing_seed).issuer,
    )
    people = [_credential(issuer, manifest, SystemEntropy()) for _ in range(N_PACKETS)]
    via = parse_via(None, url, SystemEntropy(), ca=certificate, manifest=manifest)
    cpu, began = {"coordinator": coordinator.cpu(), "relay": relay.cpu()}, time.process_time()
    asyncio.run(_post(manifest, people, url, via))
    participants = time.process_time() - began
    if not until(lambda: _is_counted(store), _WAIT_SECONDS, programs):
        raise RuntimeError(
            f"not all of {N_PACKETS} packets were counted:\n{relay.said}\n{coordinator.said}"
        )
    return {
        "participant": participants,
        "relay": relay.cpu() - cpu["relay"],
        "coordinator": coordinator.cpu() - cpu["coordinator"],
    }


def _start_command(programs: list[Program], log: Path, *words: object) -> Program:
    """Start a command of shoal and wait until it listens."""
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    program = Program([sys.executable, "-m", "shoal", *map(str, words)], environment, log)
    programs.append(program)
    if not until(lambda: '"address"' in program.said, _WAIT_SECONDS, [program]):
        raise RuntimeError("a program of the benchmark does not listen")
    return program


def _credential(issuer: Issuer, manifest: Manifest, entropy: Entropy) -> Credential:
    """Return a credential of the coordinator's issuer."""
    registration, scope = Registration.draw(entropy), compute_scope(manifest)
    return registration.accept(
        issuer.key,
        scope,
        issuer.issue(scope, registration.make_commitment(issuer.key, scope), 0, entropy),
    )


async def _post(manifest: Manifest, people: list[Credential], url: str, via: NetworkPath) -> None:
    """Mint, seal and post the packet of each participant."""
    study, slots, script, entropy = (
        manifest.digest,
        TokenSlots(manifest),
        build_script(manifest.study, manifest.digest),
        SystemEntropy(),
    )
    questions, size = script.questions(0, script.publish(())), compute_packet_size(script)
    gate = asyncio.Semaphore(N_AT_ONCE)
    async with Client(url, SystemClock(), entropy, network_path=via) as client:
        await via.check(StudyHandle(manifest))

        async def one(person: Credential) -> None:
            async with gate:
                context = slots.encode_context(0)
                ticket = slots.compute_ticket(person.compute_pseudonym(context), person.partition)
                (number,) = script.list_question_numbers(
                    0, int(script.assign_groups(0, ticket_words(study, ticket))[0])
                )
                mechanism = questions[number].mechanism
                assert mechanism is not None
                report = mechanism.encode(mechanism.report(0, entropy))
                answer = encode(
                    AnonMLAnswer(
                        study=study, ticket=ticket, phase=0, question=number, report=report
                    )
                )
                packet = Packet(
                    person.mint(context, answer, entropy), person.partition, answer
                ).to_bytes(size)
                await via.post_packet(study.hex(), via.seal(study.hex(), packet), client)

        await asyncio.gather(*(one(person) for person in people))


def _is_counted(store: Path) -> bool:
    """Return whether the coordinator has received and counted all packets."""
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as db:
        (accepted,), (waiting,) = (
            db.execute(query).fetchone()
            for query in ("SELECT n_accepted FROM standing", "SELECT count(*) FROM held")
        )
    return bool(accepted == N_PACKETS and waiting == 0)
