"""Hundreds of real participants from one table, in one process: for tests and demonstrations.

Each has a ledger and a journal of its own, in a file of a directory, and does what ``shoal join`` does, over HTTP. Whoever runs a fleet
holds all of its rows, so nothing is hidden from them.

``python -m shoal.participant.fleet URL --data F --participants N --directory D`` runs one. With ``--roster FILE`` in place of the address
it makes the keys of N databases or holders and writes their roster.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shoal import command_lines, tables
from shoal.clock import Clock, SystemClock
from shoal.command_tasks import run_tasks
from shoal.entropy import Entropy, SystemEntropy
from shoal.errors import ShoalError, UsageError
from shoal.names import counted, shell_word, shown
from shoal.participant.client import Client
from shoal.participant.identity import master
from shoal.participant.journal import Journal
from shoal.participant.ledger_file import LedgerFile
from shoal.participant.offers import Offer, fetch
from shoal.participant.peers import encode
from shoal.participant.runner import Finished, Tell
from shoal.participant.session import opened
from shoal.participant.via import Via, via_of
from shoal.privacy.limits import Limit
from shoal.privacy.rounding import grains_up
from shoal.study.anonymity import has_tokens
from shoal.study.manifest import Manifest, Member
from shoal.study.plan import make_plan
from shoal.study.spec import Study
from shoal.table_files import Table

AT_ONCE = 64
"""People or devices that are under way at a time; databases, holders and people with tokens wait for each other, all at once."""
MOST = 100_000
"""Participants of a fleet."""


def _say_nothing(_: str) -> None:
    pass


def parts_of(study: Study, table: Table, n: int, holder: str | None = None) -> list[Table]:
    """A table dealt to n participants.

    Parameters
    ----------
    study
        AnonML gives everyone one row, in order; the others deal all rows, one after another.
    table, n
        The rows, and to how many they go.
    holder
        A column that says whose each row is, in place of dealing; the participants are its values, in order.

    Raises
    ------
    UsageError
        ``USAGE-001``: there are too few rows, no such column, or another number of holders in it.

    Examples
    --------
    >>> from shoal.study.load import parse
    >>> from shoal.study.templates import study_text
    >>> rows = {"site": np.array(["b", "a", "b"]), "age": np.array([1, 2, 3])}
    >>> [part["age"].tolist() for part in parts_of(parse(study_text("pfds")), rows, 2, "site")]
    [[2], [1, 3]]
    """
    n_rows = tables.n_rows(table)
    if holder is not None:
        if holder not in table:
            raise UsageError("USAGE-001", f"The table has no column {shown(holder)}.", fix="--holder COLUMN")
        values, whose = np.unique(np.array([str(value) for value in table[holder]]), return_inverse=True)
        if len(values) != n:
            what = f"The column {shown(holder)} names {counted(len(values), 'holder')}; {n} are to take part."
            raise UsageError("USAGE-001", what, fix=f"--participants {len(values)}")
    else:
        if n > n_rows:
            what = f"The table has {counted(n_rows, 'row')}; {n} participants cannot have one each."
            raise UsageError("USAGE-001", what, fix=f"--participants {n_rows}")
        whose = np.arange(n_rows) % n
        if study.protocol == "anonml":
            whose[n:] = -1
    return [{name: column[whose == i] for name, column in table.items()} for i in range(n)]


def file_of(directory: Path, i: int) -> Path:
    """The ledger of a participant."""
    return directory / f"participant-{i:05d}.db"


def roster_of(directory: Path, n: int, clock: Clock, entropy: Entropy) -> tuple[Member, ...]:
    """The names and keys of n participants, whose files are made where they are not there."""
    _make(directory)
    members = []
    for i in range(n):
        with Journal(file_of(directory, i), clock) as journal:
            members.append(Member(f"participant-{i:05d}", master(journal, entropy).public))
    return tuple(members)


@dataclass(frozen=True)
class Waters:
    """Where a fleet sails: the coordinator, the directory with a file for each participant, the time, and where what is drawn comes from.

    Parameters
    ----------
    ca
        Certificates to trust in place of the system's.
    out
        Where each participant keeps what it takes home, in a directory of its own; None for nothing.
    via
        How all of them reach the coordinator, as ``--via`` of ``shoal join`` has it; None for through the study's relay, or directly.
    from_addresses
        Whether each connects from an address of this machine of its own, 127.0.x.y, in place of one for all; not by Tor.
    """

    url: str
    directory: Path
    clock: Clock
    entropy: Entropy
    ca: Path | None = None
    out: Path | None = None
    via: str | None = None
    from_addresses: bool = False

    def way(self, manifest: Manifest, i: int) -> Via:
        """How a participant reaches the coordinator."""
        address = f"127.0.{i // 250 + 1}.{i % 250 + 1}" if self.from_addresses else None
        return via_of(self.via, self.url, self.entropy, ca=self.ca, manifest=manifest, local_address=address)


async def fleet(
    waters: Waters,
    table: Table,
    n: int,
    *,
    study: str | None = None,
    holder: str | None = None,
    at_once: int = AT_ONCE,
    tell: Tell = _say_nothing,
) -> dict[int, Finished | ShoalError]:
    """Have n participants take part until each has ended; how each did, or why it could not.

    Parameters
    ----------
    waters
        Where.
    table, n, holder
        As `parts_of` takes them.
    study
        The digest of the study, or its beginning, where there are several.
    at_once
        How many people or devices are under way at a time.
    tell
        Is told how many have ended.
    """
    first = None if waters.via is None else via_of(waters.via, waters.url, waters.entropy, ca=waters.ca)
    async with Client(waters.url, waters.clock, waters.entropy, ca=waters.ca, via=first) as client:
        offer = await fetch(client, study)
    parts = parts_of(offer.manifest.study, table, n, holder)
    for part in parts:
        encode(offer.manifest, part)
    _make(waters.directory)
    # People whose packets leave at times of their own wait for the same window.
    is_together = offer.manifest.study.protocol in ("sdq", "pfds") or (
        offer.manifest.study.protocol == "anonml" and has_tokens(offer.manifest)
    )
    gate = asyncio.Semaphore(n if is_together else at_once)
    ended: dict[int, Finished | ShoalError] = {}

    async def one(i: int) -> None:
        async with gate:
            try:
                ended[i] = await _join(waters, offer, i, parts[i])
            except ShoalError as error:
                ended[i] = error
            tell(_line(ended, n))

    async with asyncio.TaskGroup() as group:
        for i in range(n):
            group.create_task(one(i))
    return dict(sorted(ended.items()))


async def _join(waters: Waters, offer: Offer, i: int, part: Table) -> Finished:
    """What ``shoal join`` does, for a participant that agrees to this study and sets its limits accordingly."""
    path, source = file_of(waters.directory, i), f"rows of participant {i}"
    async with opened(path, waters.url, waters.clock, waters.entropy, waters.ca, waters.way(offer.manifest, i)) as session:
        if session.taken_up(offer) is None:
            _allow(session.ledger, offer)
            session.refuse_if_too_much(session.asked(offer, source), None)
            session.agree(offer, source)
        finished = await session.take_part(offer, part, _say_nothing)
        if waters.out is not None and finished.standing != "aborted":
            await session.keep(offer, finished, waters.out / path.stem, _say_nothing)
        return finished


def _allow(ledger: LedgerFile, offer: Offer) -> None:
    """Set a limit that the study keeps: the owners of these ledgers are made up."""
    charges = make_plan(offer.manifest.study, offer.manifest.digest).charges
    grains = 2 * sum(grains_up(event.epsilon) for event in charges)
    ledger.set_limit(Limit(charges[0].scope.unit, grains, delta_grains=10**17))


def _line(ended: Mapping[int, Finished | ShoalError], n: int) -> str:
    kinds = Counter(one.code if isinstance(one, ShoalError) else one.standing for one in ended.values())
    return f"{len(ended)} of {n}: " + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))


def main(
    url: str | None = None,
    /,
    *,
    participants: int,
    directory: Path,
    data: str | None = None,
    roster: Path | None = None,
    study: str | None = None,
    holder: str | None = None,
    at_once: int = AT_ONCE,
    ca: Path | None = None,
    out: Path | None = None,
    via: str | None = None,
    from_addresses: bool = False,
) -> None:
    """Run a fleet: real participants from one table in one process, for tests and demonstrations.

    Parameters
    ----------
    url
        The coordinator's address.
    participants
        How many there are.
    directory
        Where their ledgers are.
    data
        The table that is dealt to them.
    holder
        A column of it that says whose each row is.
    roster
        Make keys for all of them and write their roster to this file, in place of taking part.
    study
        The digest of the study, or its beginning, where the coordinator has several.
    at_once
        How many people or devices are under way at a time.
    ca
        Certificates to trust in place of the system's, in PEM form.
    out
        Where each keeps what it takes home, in a directory of its own.
    via
        How they reach the coordinator: direct, ohttp:RELAY-URL, tor or tor:HOST:PORT. Without it through the study's relay, or directly.
    from_addresses
        Have each connect from an address 127.0.x.y of its own.
    """
    for name, n in (("participants", participants), ("at-once", at_once)):
        if not 1 <= n <= MOST:
            raise UsageError("USAGE-001", f"--{name} {n} is not from 1 to {MOST:,}.")
    if roster is not None and (url is not None or data is not None):
        what = "--roster makes keys, and an address and a table are for taking part; both are given."
        raise UsageError("USAGE-001", what, fix="First --roster FILE alone; then, with the same --directory, URL --data rows.csv")
    clock, entropy = SystemClock(), SystemEntropy()
    if roster is not None:
        members = roster_of(directory, participants, clock, entropy)
        _write(roster, "\n".join(f'[[member]]\nname = "{member.name}"\nkey = "{member.key.hex()}"\n' for member in members))
        print(f"wrote     {shown(str(roster))}: {counted(len(members), 'member')}")
        print(f"\nnext      shoal serve study.toml --roster {shell_word(roster)}")
        return
    if url is None or data is None:
        raise UsageError("USAGE-001", "A fleet needs an address and a table.", fix="URL --data rows.csv, or --roster FILE")
    print("This is for tests and demonstrations: whoever runs it holds all rows.", file=sys.stderr)
    waters = Waters(url, directory, clock, entropy, ca, out, via, from_addresses)
    ended = run_tasks(fleet(waters, tables.read(data), participants, study=study, holder=holder, at_once=at_once, tell=_show))
    print(end="\n" if sys.stderr.isatty() else "", file=sys.stderr)
    print(_line(ended, participants))
    failed = [one for one in ended.values() if isinstance(one, ShoalError)]
    if failed:
        raise failed[0]


def _show(line: str) -> None:
    print(f"\r{line}" if sys.stderr.isatty() else line, end="" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True)


def _make(directory: Path) -> None:
    """Make the directory of a fleet, unless it is there."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise _unwritable("directory", directory, error) from None


def _write(roster: Path, text: str) -> None:
    """Write a roster, over nothing but itself."""
    try:
        if roster.exists() and roster.read_bytes() != text.encode():
            fix = "Give a name that no file has yet: --roster FILE"
            raise UsageError("USAGE-001", f"{shown(str(roster))} is there already, and is not the roster of this fleet.", fix=fix)
        roster.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:
        raise _unwritable("roster", roster, error) from None


def _unwritable(option: str, path: Path, error: OSError | ValueError) -> UsageError:
    reason = error.strerror if isinstance(error, OSError) else "its name is not one that a file can have"
    reason = "there is a file of that name" if isinstance(error, FileExistsError) else reason
    return UsageError("USAGE-001", f"The {option} {shown(str(path))} cannot be written: {reason}.", fix=f"Give another: --{option} PATH")


def _tell(error: ShoalError) -> None:
    print(error, file=sys.stderr)


if __name__ == "__main__":
    command_lines.heed_termination()
    app = command_lines.make_app("python -m shoal.participant.fleet")
    app.default(main)
    sys.exit(command_lines.run(app, sys.argv[1:], _tell, "python -m shoal.participant.fleet --help lists the options."))
