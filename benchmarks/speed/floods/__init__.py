"""A small AnonML study with tokens while one host floods the coordinator.

For each flood a coordinator is started. Some participants take part undisturbed, then others while
one attacking process (`benchmarks.speed.floods.attack`) does its worst. A participant fetches the
manifest, registers with an invitation, reads the list of members, mints a token and submits its
packet, with the code of ``shoal join``, on new connections, and resends what was not answered.
``delay`` is the median time of a participant under the flood less that without it. All answers must
be counted and the study must end with a model, or there are no figures. ``--seeds`` is the number
of seconds of each flood; ``--only`` takes a part of a name. The last part, ``rewrite``, measures
how long writers wait while the rows of a million members are rewritten.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2

from benchmarks.measure import Measure, table
from benchmarks.speed.floods import rewrite
from benchmarks.speed.floods.attack import ATTACKS, Target
from benchmarks.speed.processes import Program, ending, until
from benchmarks.speed.server.runs import ROOT
from shoal.clock import SystemClock, to_milliseconds
from shoal.coordinator.enrolment import CoordinatorKeys
from shoal.crypto.credentials.issuance import Credential, Registration
from shoal.crypto.identity import Identity
from shoal.entropy import SystemEntropy
from shoal.errors import TransportError
from shoal.messages.codec import encode
from shoal.participant.client import Client
from shoal.protocols.anonml.assignment import ticket_words
from shoal.protocols.anonml.messages import AnonMLAnswer
from shoal.study.delivery import compute_scope
from shoal.study.handle import StudyHandle
from shoal.study.manifest import Manifest
from shoal.transport.api import Enrolment, PacketBatch, study_route, to_cbor, to_json
from shoal.transport.packets import Packet, compute_max_part, seal_packet
from shoal.transport.signing import sign_request

BENCH = "floods"
SECONDS = 60
N_BEFORE = 10
GAP_SECONDS = 1.0
TARGET_SECONDS = 1.0
_WAIT_SECONDS = 120.0
_N_SEALED = 512
"""Different sealed forms of one bad packet; sealing takes the attacker longer than opening them."""

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
missing = false
[privacy]
epsilon = 2.0
[participation]
minimum = {minimum}
size = {size}
"""


@dataclass(frozen=True)
class Outcome:
    """Seconds of participants before and during a flood, and memory of the coordinator in MB."""

    before: list[float]
    during: list[float]
    megabytes_before: float
    peak_megabytes: float

    @property
    def delay(self) -> float:
        return statistics.median(self.during) - statistics.median(self.before)


def measures(only: str = "", seeds: int = SECONDS) -> Iterator[Measure]:
    """Yield the delay of participants, and the coordinator's memory, for each flood."""
    for name in ATTACKS:
        if only in name:
            found = flood(name, seeds)
            yield Measure(BENCH, f"{name}_delay", found.delay, "s", "lower", TARGET_SECONDS)
            yield Measure(BENCH, f"{name}_slowest", max(found.during), "s", "lower")
            yield Measure(
                BENCH, f"{name}_undisturbed", statistics.median(found.before), "s", "lower"
            )
            yield Measure(BENCH, f"{name}_memory_before", found.megabytes_before, "MB", "lower")
            yield Measure(BENCH, f"{name}_memory_peak", found.peak_megabytes, "MB", "lower")
    if only in "rewrite":
        yield from rewrite.measures(BENCH)


def flood(
    name: str,
    seconds: float,
    *,
    gap: float = GAP_SECONDS,
    n_before: int = N_BEFORE,
    n_connections: int | None = None,
) -> Outcome:
    """Run a study, most of it under a flood.

    Parameters
    ----------
    gap
        Seconds between two participants.
    n_before
        Participants before the flood.
    n_connections
        Most connections of the attacking process; None for all.
    """
    n = n_before + max(n_before, round(seconds / gap))
    programs: list[Program] = []
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder, ending(programs):
        home = Path(folder)
        (home / "study.toml").write_text(_STUDY.format(minimum=n // 2, size=n))
        served = _serve(home, n, programs)
        target = _make_target(served, home / "target", n_connections)
        before = asyncio.run(_take_part(served, range(n_before), gap))
        megabytes_before = served.read_megabytes("VmRSS")
        Path(f"/proc/{served.program.pid}/clear_refs").write_text("5")
        with _attacking(name, target):
            time.sleep(min(5.0, seconds / 4))
            during = asyncio.run(_take_part(served, range(n_before, n), gap))
            peak = served.read_megabytes("VmHWM")
        if not until(served.is_done, _WAIT_SECONDS, programs):
            raise RuntimeError(f"the study did not end:\n{served.program.said}")
    return Outcome(before, during, megabytes_before, peak)


@dataclass(frozen=True)
class Served:
    """A coordinator, its study, and the codes of its participants."""

    program: Program
    url: str
    handle: StudyHandle
    codes: tuple[str, ...]

    @property
    def digest(self) -> str:
        return self.handle.digest.hex()

    def read_megabytes(self, what: str) -> float:
        lines = Path(f"/proc/{self.program.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(what)) / 1e3

    def is_done(self) -> bool:
        answer = httpx2.get(f"{self.url}{study_route(self.digest, 'model')}", timeout=60)
        return answer.status_code == 200


def _serve(home: Path, n: int, programs: list[Program]) -> Served:
    words = ("serve", "study.toml", "--port", "0", "--store", f"sqlite:{home}/coordinator.db")
    command = [sys.executable, "-m", "shoal", *words, "--invite", str(n), "--json"]
    command[command.index("study.toml")] = str(home / "study.toml")
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    program = Program(command, environment, home / "coordinator.log")
    programs.append(program)
    if not until(lambda: '"address"' in program.said, _WAIT_SECONDS, [program]):
        raise RuntimeError(f"the coordinator does not listen:\n{program.said}")
    said = json.loads(next(line for line in program.said.splitlines() if '"address"' in line))
    digest, url = said["studies"][0]["digest"], said["address"]

    async def fetch() -> bytes:
        async with Client(url, SystemClock(), SystemEntropy()) as client:
            return (await client.fetch_manifest(digest)).manifest

    handle = StudyHandle(Manifest.from_bytes(asyncio.run(fetch())))
    return Served(program, url, handle, tuple(said["invitations"][digest]))


def _make_target(served: Served, path: Path, n_connections: int | None) -> Path:
    """Prepare the bytes of the attacks: no member's token is in them."""
    handle, entropy = served.handle, SystemEntropy()
    manifest = handle.manifest
    stranger = _issue_elsewhere(manifest)
    packet, key = _make_packet(handle, stranger), manifest.gateway_key
    assert key is not None
    sealed = [seal_packet(key, served.digest, packet) for _ in range(_N_SEALED)]
    most = compute_max_part(handle.packet_size or 0)
    registration = to_json(
        Enrolment(invitation="a guess", commitment=_draw_commitment(manifest)[1].hex())
    )
    route, now = study_route(served.digest, "enrolments"), to_milliseconds(SystemClock().now())
    identity = Identity.from_seed(entropy.bytes(32))
    Target(
        int(served.url.rpartition(":")[2]),
        served.digest,
        (
            to_cbor(PacketBatch(packets=(sealed[0],) * most)),
            to_cbor(PacketBatch(packets=tuple(sealed))),
        ),
        registration,
        sign_request(identity, "POST", route, registration, now, entropy),
        n_connections,
    ).save(path)
    return path


@contextmanager
def _attacking(name: str, target: Path) -> Iterator[None]:
    """Run the attacking process until the caller is done."""
    code = "from benchmarks.speed.floods.attack import main; main()"
    command = [sys.executable, "-c", code, name, str(target)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdin is not None
        try:
            yield
        finally:
            process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


async def _take_part(served: Served, numbers: range, gap: float) -> list[float]:
    """Let participants come one after another; return the seconds that each needs."""
    tasks = []
    for number in numbers:
        tasks.append(asyncio.create_task(_join(served, number)))
        await asyncio.sleep(gap)
    return list(await asyncio.gather(*tasks))


async def _join(served: Served, number: int) -> float:
    entropy, manifest = SystemEntropy(), served.handle.manifest
    identity, (registration, commitment) = (
        Identity.from_seed(entropy.bytes(32)),
        _draw_commitment(manifest),
    )
    form = Enrolment(invitation=served.codes[number], commitment=commitment.hex())
    begun = time.perf_counter()
    async with Client(served.url, SystemClock(), entropy) as client:

        def ignore(_: TransportError) -> None:
            return None

        await client.retry(lambda: client.fetch_manifest(served.digest), ignore)
        enrolled = await client.retry(lambda: client.enrol(served.digest, identity, form), ignore)
        await client.retry(lambda: client.fetch_members(served.digest), ignore)
        assert manifest.issuer_key is not None and enrolled.issued is not None
        credential = registration.accept(
            manifest.issuer_key, compute_scope(manifest), bytes.fromhex(enrolled.issued)
        )
        packet = _make_packet(served.handle, credential)
        async with client.open_isolated() as isolated:
            await client.retry(lambda: isolated.submit_packet(served.digest, packet), ignore)
    return time.perf_counter() - begun


def _draw_commitment(manifest: Manifest) -> tuple[Registration, bytes]:
    assert manifest.issuer_key is not None
    registration = Registration.draw(SystemEntropy())
    return registration, registration.make_commitment(manifest.issuer_key, compute_scope(manifest))


def _issue_elsewhere(manifest: Manifest) -> Credential:
    """Return a credential of another issuer, whose tokens are bad here."""
    issuer, scope, entropy = (
        CoordinatorKeys(bytes(32)).issuer,
        compute_scope(manifest),
        SystemEntropy(),
    )
    registration = Registration.draw(entropy)
    commitment = registration.make_commitment(issuer.key, scope)
    return registration.accept(issuer.key, scope, issuer.issue(scope, commitment, 0, entropy))


def _make_packet(handle: StudyHandle, credential: Credential) -> bytes:
    """Return a packet with a random answer to the question of a credential."""
    script, slots, entropy = handle.script, handle.slots, SystemEntropy()
    context = slots.encode_context(0)
    ticket = slots.compute_ticket(credential.compute_pseudonym(context), credential.partition)
    (number,) = script.list_question_numbers(
        0, int(script.assign_groups(0, ticket_words(handle.digest, ticket))[0])
    )
    mechanism = script.questions(0, script.publish(()))[number].mechanism
    assert mechanism is not None
    report = mechanism.encode(mechanism.report(0, entropy))
    answer = encode(
        AnonMLAnswer(study=handle.digest, ticket=ticket, phase=0, question=number, report=report)
    )
    token = credential.mint(context, answer, entropy)
    return Packet(token, credential.partition, answer).to_bytes(handle.packet_size or 0)


def markdown(only: str = "", seeds: int = SECONDS) -> Iterator[str]:
    """Yield the page of the documentation."""
    text = Path(__file__).with_name("page.md").read_text("utf-8")
    yield from text.format(day=time.strftime("%-d %B %Y"), seconds=seeds).splitlines()
    yield from table(measures(only, seeds))
