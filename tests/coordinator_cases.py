"""Small studies of every kind that a coordinator hosts, their honest peers, and a drive of both through ``fold`` without any store."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.clock import ManualClock
from shoal.coordinator.aggregators import aggregator_of, names_of, queries_to_bytes, seats_of
from shoal.coordinator.hosting import fold, milliseconds, moment
from shoal.coordinator.office import Office
from shoal.coordinator.results import result_of
from shoal.coordinator.store.base import Ending, Folded, Held, Hosted, Loaded
from shoal.crypto.roster import Identity, Roster
from shoal.domain import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.messages.codec import decode
from shoal.protocols.anonml.peer import AnonMLPeer
from shoal.protocols.base import AGGREGATOR, START, Compute, Feed, IdealComputer, Outbound, Outcome, Peer, Sent, Started, open_hosts
from shoal.protocols.pfds.paper import Points
from shoal.protocols.pfds.params import Rows
from shoal.protocols.pfds.sharing_peer import SharingPeer
from shoal.protocols.pfds.summing_peer import SummingPeer
from shoal.protocols.pfds.sums import SumScript
from shoal.protocols.pfds.tables_peer import TablesPeer
from shoal.protocols.sdq.params import Table
from shoal.protocols.sdq.peer import SDQPeer
from shoal.protocols.sdq.queries import Marginals, Query
from shoal.protocols.sums.member import Member as SumMember
from shoal.protocols.sums.terms import Terms
from shoal.study import anonml, pfds, sdq
from shoal.study.load import parse
from shoal.study.manifest import Manifest, Member
from shoal.transport.forms import Enrolment, Poll

NOW = milliseconds(START)
PATIENCE = 60_000
QUERIES: tuple[Query, ...] = (Marginals(features=("town", "ill")),)

_HEAD = 'title = "A study"\npurpose = "To test."\ncontact = "a@example.org"\n'
_BODY = """
[label]
name = "ill"
values = ["no", "yes"]
[[feature]]
name = "age"
range = [0, 100]
bins = [40, 60]
missing = false
[[feature]]
name = "town"
values = ["x", "y", "z"]
missing = false
"""


def _text(protocol: str, head: str, epsilon: float, participation: str, tail: str = "", *, bins: bool = True) -> str:
    body = _BODY if bins else _BODY.replace("bins = [40, 60]\n", "")
    return f'protocol = "{protocol}"\n{head}{body}[privacy]\nepsilon = {epsilon}\n{participation}{tail}'


_PAPER, _LOCAL, _SUM = 'variant = "paper"\n', 'trust = "local"\n', 'trust = "secure-sum"\n'
_PEOPLE, _FOUR = "[participation]\nminimum = 20\nsize = 60\n", "[participation]\nminimum = 3\nsize = 120\n"
_FREE = '[queries]\nfeatures = ["town", "ill"]\nn_queries = 1\nepsilon_release = 1.0\n'
_CROWD = "[participation]\nminimum = 1000\nsize = 2000\nhonest_share = 0.9\n"
_SITES = "[sdq]\nn_databases = 4\n"
_TEXTS = {
    "anonml": _text("anonml", "", 2.0, _PEOPLE),
    "anonml phases": _text("anonml", "", 2.0, _PEOPLE, bins=False),
    "anonml paper": _text("anonml", _PAPER, 9.0, _PEOPLE, "[anonml]\nn_partitions = 2\nn_subsets = 1\nsubset_size = 1\n"),
    "sdq": _text("sdq", "", 6.0, _FOUR, f'{_SITES}max_colluders = 1\ndepth = 2\nchoice = "mpc"\n{_FREE}'),
    "sdq paper": _text("sdq", _PAPER, 6.0, _FOUR, f"{_SITES}max_colluders = 1\ndepth = 1\n"),
    "sdq local": _text("sdq", _PAPER + _LOCAL, 6.0, _FOUR, f"{_SITES}depth = 1\n"),
    "pfds": _text("pfds", "", 3.0, _FOUR, "[pfds]\nn_holders = 4\n"),
    "pfds sum": _text("pfds", _SUM, 3.0, _FOUR, "[pfds]\nn_holders = 4\nmax_colluders = 1\n"),
    "pfds paper": _text("pfds", _PAPER, 9.0, _FOUR, "[pfds]\nn_holders = 4\nmax_depth = 2\n", bins=False),
    "ddml": _text("ddml", "", 4.0, "[participation]\nminimum = 10\nsize = 1000\n", '[ddml]\nn_instances = 10\nadmission = "token"\n'),
    "shuffled": _text("anonml", 'trust = "shuffled"\n', 2.0, f"delta = 1e-6\n{_CROWD}"),
}
HOSTED = tuple(name for name in _TEXTS if name not in ("ddml", "shuffled"))
"""Studies that have a machine."""
ROSTERED = ("sdq", "sdq paper", "sdq local", "pfds sum")


def identity(i: int) -> Identity:
    return Identity.from_seed(bytes([i + 1]) * 32)


def manifest_of(name: str, *, closes: str | None = None) -> Manifest:
    text = _HEAD + _TEXTS[name]
    if closes is not None:
        text = text.replace("[participation]\n", f"[participation]\ncloses = {closes}\n")
    roster = tuple(Member(f"site-{i}", identity(i).public) for i in range(4)) if name in ROSTERED else ()
    return Manifest(parse(text), roster=roster)


def hosted_of(name: str, **changes: Any) -> Hosted:
    manifest = manifest_of(name)
    queries = queries_to_bytes(QUERIES) if name == "sdq" else b""
    settings = {"patience": PATIENCE, "seats": seats_of(manifest), "queries": queries, **changes}
    return Hosted(manifest.digest.hex(), manifest.to_bytes(), NOW, **settings)


def rows(schema: Schema, n: int, seed: int) -> tuple[dict[str, npt.NDArray[Any]], npt.NDArray[np.int64]]:
    """Encoded rows in which every feature leans with the label."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, n)
    columns: dict[str, npt.NDArray[Any]] = {}
    for feature in schema.features:
        if isinstance(feature, Numeric):
            columns[feature.name] = np.floor(feature.low + (feature.high - feature.low) * rng.beta(2 + labels, 3, n))
        else:
            assert isinstance(feature, Categorical)
            columns[feature.name] = (labels + rng.integers(0, len(feature.values), n) * (rng.random(n) < 0.5)) % len(feature.values)
    return columns, labels


def ticket(i: int) -> bytes:
    return i.to_bytes(32, "big")


def peers_of(name: str, n: int = 60) -> dict[str, Peer[Any]]:
    """Honest peers under the names by which the aggregator knows them; n people, or as many holders as the study has."""
    manifest = manifest_of(name)
    study, digest = manifest.study, manifest.digest
    if study.protocol == "anonml":
        script, (columns, labels) = anonml.script_of(study, digest), rows(study.schema(), n, 1)
        cut = [({name: column[i : i + 1] for name, column in columns.items()}, labels[i : i + 1]) for i in range(n)]
        return {f"person-{i}": AnonMLPeer(digest, script, ticket(i), *one) for i, one in enumerate(cut)}
    names, tables = names_of(manifest), [rows(study.schema(), 30, i) for i in range(4)]
    terms = None
    if manifest.roster:
        roster = Roster(names, tuple(member.key for member in manifest.roster))
        terms = Terms(digest, roster, 4 if study.trust == "local" else study.participation.minimum)
    peers: dict[str, Peer[Any]] = {}
    for i, (holder, table) in enumerate(zip(names, tables, strict=True)):
        if study.protocol == "sdq":
            assert terms is not None
            params = sdq.params_of(study)
            counted = Table.of(params, *table, np.zeros(30, np.int64))
            peers[holder] = SDQPeer(sdq.script_of(study), SumMember(terms, i, identity(i)), counted, sdq.free_of(study))
            continue
        shared = pfds.params_of(study)
        if shared.variant == "paper":
            peers[holder] = SharingPeer(shared, digest, holder, Points.of(shared, *table))
        elif terms is not None:
            peers[holder] = SummingPeer(SumScript(shared), SumMember(terms, i, identity(i)), Rows.of(shared, *table))
        else:
            peers[holder] = TablesPeer(shared, digest, i, Rows.of(shared, *table))
    return peers


@dataclass
class Memory:
    """What a store would keep of one study, for `fold` alone."""

    state: bytes | None = None
    held: list[Held] = field(default_factory=list)
    alarms: set[int] = field(default_factory=set)
    letters: list[tuple[str | None, bytes]] = field(default_factory=list)
    rejected: dict[str, int] = field(default_factory=dict)
    ending: Ending | None = None

    def loaded(self, now: int) -> Loaded:
        return Loaded(self.state, tuple(self.held), tuple(sorted(alarm for alarm in self.alarms if alarm <= now)))

    def save(self, folded: Folded) -> None:
        self.state, self.ending = folded.state, folded.ending
        self.held = [held for held in self.held if held.number not in folded.taken]
        self.alarms = (self.alarms - set(folded.rung)) | set(folded.alarms)
        self.letters += folded.letters
        for code, n in folded.rejected.items():
            self.rejected[code] = self.rejected.get(code, 0) + n


def drive(name: str, peers: Mapping[str, Peer[Any]], seed: int = 1, batch: int = 10**9) -> tuple[Memory, Outcome]:
    """A whole study: peers as every driver hosts them, and the aggregator through `fold`, with up to so many messages at a time."""
    manifest, hosted, entropy = manifest_of(name), hosted_of(name), SeededEntropy(seed)
    aggregator, names, memory, outcome = aggregator_of(manifest, hosted), names_of(manifest), Memory(), Outcome()
    assert aggregator is not None
    hosts = open_hosts(aggregator, peers, entropy, None)
    del hosts[AGGREGATOR]
    computer, now, number, delivered = IdealComputer(entropy), NOW, 0, 0
    inbox: list[tuple[str, Any]] = [(peer, Started()) for peer in hosts]
    while memory.ending is None or inbox:
        for peer, given in inbox:
            handled = hosts[peer].handle(given, moment(now), outcome)
            hosts[peer].accept(handled)
            for item in handled.work:
                match item:
                    case Outbound():
                        sent = hosts[peer].send(item, moment(now), outcome)
                        assert isinstance(sent, Sent)
                        message = decode(sent.payload, aggregator.messages, aggregator.study)
                        number += 1
                        memory.held.append(Held(number, "" if message.is_anonymous else peer, sent.payload, str(number).encode()))
                    case Compute():
                        computer.begin(peer, item)
                    case Feed():
                        computer.feed(peer, item)
                    case ending:
                        outcome.note(peer, ending)
        inbox = list(computer.collect())
        if memory.ending is None and not inbox:
            if memory.state is not None and not memory.held:
                now = max(now, min(memory.alarms))
            loaded = memory.loaded(now)
            some = Loaded(loaded.state, loaded.held[:batch], loaded.alarms if len(loaded.held) <= batch else ())
            memory.save(fold(aggregator, some, now, entropy, names, partial(result_of, manifest)))
        for to, payload in memory.letters[delivered:]:
            inbox += [(peer, Sent(moment(now), AGGREGATOR, peer, payload)) for peer in (hosts if to is None else [to])]
        delivered = len(memory.letters)
    return memory, outcome


async def attend(offices: Sequence[Office], name: str, peers: Mapping[str, Peer[Any]], clock: ManualClock, seed: int = 1) -> Outcome:
    """All peers enrol and take part, request by request, now at this worker and now at that, until the study has ended.

    When nothing happens any more, time passes.
    """
    manifest, entropy, outcome = manifest_of(name), SeededEntropy(seed), Outcome()
    digest, aggregator = manifest.digest.hex(), aggregator_of(manifest, hosted_of(name))
    assert aggregator is not None
    hosts = open_hosts(aggregator, peers, entropy, None)
    del hosts[AGGREGATOR]
    turn, computer, cursors = count(), IdealComputer(entropy), dict.fromkeys(hosts, 0)
    has_looked, names = False, {}
    for i, peer in enumerate(hosts):
        form = Enrolment(ticket=ticket(i).hex() if manifest.study.protocol == "anonml" else None)
        nonce = next(turn)
        names[peer] = (await offices[nonce % len(offices)].enrol(digest, identity(i).public, form, nonce.to_bytes(16, "big"))).name
    inbox: list[tuple[str, Any]] = [(peer, Started()) for peer in hosts]
    while True:
        for peer, given in inbox:
            handled = hosts[peer].handle(given, clock.now(), outcome)
            hosts[peer].accept(handled)
            for item in handled.work:
                office = offices[next(turn) % len(offices)]
                match item:
                    case Outbound() if manifest.study.protocol == "anonml":
                        await office.submit(digest, item.payload)
                    case Outbound():
                        assert await office.message(digest, names[peer], item.payload, next(turn).to_bytes(16, "big")) != "conflict"
                    case Compute():
                        computer.begin(peer, item)
                    case Feed():
                        computer.feed(peer, item)
                    case ending:
                        outcome.note(peer, ending)
        inbox, status = list(computer.collect()), "open"
        for peer in hosts:
            nonce, after = next(turn), cursors[peer]
            office = offices[nonce % len(offices)]
            if manifest.study.protocol == "anonml":
                fetched = await office.board(digest, after, 0)
            else:
                fetched = await office.mailbox(digest, names[peer], Poll(after=after), nonce.to_bytes(16, "big"))
            status = fetched.status
            for letter in fetched.letters:
                cursors[peer] = letter.number
                inbox.append((peer, Sent(clock.now(), AGGREGATOR, peer, letter.payload)))
        if not inbox and status != "open":
            return outcome
        if inbox:
            has_looked = False
        elif offices[0]._store.due(milliseconds(clock.now())):
            await asyncio.sleep(0.002)
        elif has_looked:
            has_looked = False
            clock.advance(PATIENCE / 1000)
            offices[0]._stepper.wake()
        else:
            has_looked = True
