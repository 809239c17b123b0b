"""Run many real participants from one table in one process, for tests and demonstrations.

Each participant has its own file with ledger and journal, and does over HTTP what ``shoal join``
does. The person who runs a fleet has all rows, so nothing is hidden from that person.

``python -m shoal.cli.fleet URL --data F --participants N --directory D`` runs a fleet. With
``--roster FILE`` instead of the address, it makes the keys of N databases or holders and writes
their roster.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from shoal.cli import runtime
from shoal.cli.runtime import run_async
from shoal.clock import Clock, SystemClock
from shoal.data import tables
from shoal.data.tables import Table
from shoal.entropy import Entropy, SystemEntropy
from shoal.errors import ShoalError, UsageError
from shoal.participant.client import Client
from shoal.participant.delivery import ProgressCallback, ignore_progress
from shoal.participant.journal import Journal
from shoal.participant.keys import load_master_identity
from shoal.participant.ledger_file import LedgerFile
from shoal.participant.network import NetworkPath, parse_via
from shoal.participant.offers import Offer, fetch_offer
from shoal.participant.runner import ParticipationResult
from shoal.participant.session import open_session
from shoal.privacy.rounding import grains_up
from shoal.study.handle import StudyHandle
from shoal.study.manifest import Manifest, RosterMember
from shoal.study.protocol import EncodedRows
from shoal.study.registry import get_protocol
from shoal.study.spec import Study
from shoal.text import escape_text, format_count, shell_quote

MAX_CONCURRENT = 64
"""Default number of people or devices that take part at the same time.

Databases, holders and people with tokens wait for each other, so all of them take part at the same
time.
"""
MAX_PARTICIPANTS = 100_000
"""Most participants of a fleet."""


def split_table(study: Study, table: Table, n: int, holder: str | None = None) -> list[Table]:
    """Split a table into those of n participants.

    If a participant of the study has at most one row, each gets one row in order. Otherwise row i
    goes to participant i modulo n.

    Parameters
    ----------
    holder
        A column with the holder of each row. The participants are its values, sorted.

    Raises
    ------
    UsageError
        ``USAGE-001``: there are too few rows, no such column, or a different number of holders.

    Examples
    --------
    >>> from shoal.study.loader import parse_study_text
    >>> from shoal.study.starters import read_starter
    >>> rows = {"site": np.array(["b", "a", "b"]), "age": np.array([1, 2, 3])}
    >>> [
    ...     part["age"].tolist()
    ...     for part in split_table(parse_study_text(read_starter("pfds")), rows, 2, "site")
    ... ]
    [[2], [1, 3]]
    """
    n_rows = tables.count_rows(table)
    if holder is not None:
        if holder not in table:
            raise UsageError(
                "USAGE-001",
                f"The table has no column {escape_text(holder)}.",
                fix="Give a column of the table: --holder COLUMN",
            )
        values, owners = np.unique(
            np.array([str(value) for value in table[holder]]), return_inverse=True
        )
        if len(values) != n:
            raise UsageError(
                "USAGE-001",
                f"The column {escape_text(holder)} names "
                f"{format_count(len(values), 'holder')}; --participants is {n}.",
                fix=f"--participants {len(values)}",
            )
    else:
        if n > n_rows:
            raise UsageError(
                "USAGE-001",
                f"The table has {format_count(n_rows, 'row')}, too few for {n} participants.",
                fix=f"--participants {n_rows}",
            )
        owners = np.arange(n_rows) % n
        if get_protocol(study).max_rows_per_participant == 1:
            owners[n:] = -1
    return [{name: column[owners == i] for name, column in table.items()} for i in range(n)]


def make_ledger_path(directory: Path, i: int) -> Path:
    """Return the path of a participant's ledger."""
    return directory / f"participant-{i:05d}.db"


def make_fleet_roster(
    directory: Path, n: int, clock: Clock, entropy: Entropy
) -> tuple[RosterMember, ...]:
    """Return names and keys of n participants; create the files that do not exist."""
    _make_directory(directory)
    members = []
    for i in range(n):
        with Journal(make_ledger_path(directory, i), clock) as journal:
            members.append(
                RosterMember(
                    f"participant-{i:05d}", load_master_identity(journal, entropy).public_key
                )
            )
    return tuple(members)


@dataclass(frozen=True)
class FleetSettings:
    """Settings shared by all participants of a fleet.

    Parameters
    ----------
    directory
        Contains a file for each participant.
    ca
        Certificates to trust instead of the system's.
    out
        Directory with the results, a subdirectory for each participant; None for no results.
    via
        The network path, as in ``shoal join --via``; None for the study's relay, or a direct
        connection if it has none.
    from_addresses
        Whether each participant connects from a different address of this machine, 127.0.x.y. Not
        with Tor.
    """

    url: str
    directory: Path
    clock: Clock
    entropy: Entropy
    ca: Path | None = None
    out: Path | None = None
    via: str | None = None
    from_addresses: bool = False

    def open_network_path(self, manifest: Manifest, i: int) -> NetworkPath:
        """Return the network path of a participant."""
        address = f"127.0.{i // 250 + 1}.{i % 250 + 1}" if self.from_addresses else None
        return parse_via(
            self.via, self.url, self.entropy, ca=self.ca, manifest=manifest, local_address=address
        )


async def run_fleet(
    settings: FleetSettings,
    table: Table,
    n: int,
    *,
    study: str | None = None,
    holder: str | None = None,
    max_concurrent: int = MAX_CONCURRENT,
    on_progress: ProgressCallback = ignore_progress,
) -> dict[int, ParticipationResult | ShoalError]:
    """Run n participants until each has ended; return the result or the error of each.

    Parameters
    ----------
    table, n, holder
        See `split_table`.
    study
        The digest of the study, or its beginning, if there are several.
    max_concurrent
        Most people or devices that take part at the same time.
    on_progress
        Receives the number of participants that have ended.
    """
    first_path = parse_via(settings.via, settings.url, settings.entropy, ca=settings.ca)
    async with Client(
        settings.url, settings.clock, settings.entropy, network_path=first_path
    ) as client:
        offer = await fetch_offer(client, study)
    parts = [
        offer.study.encode_rows(part)
        for part in split_table(offer.manifest.study, table, n, holder)
    ]
    _make_directory(settings.directory)
    gate = asyncio.Semaphore(n if _is_simultaneous(offer.study) else max_concurrent)
    ended: dict[int, ParticipationResult | ShoalError] = {}

    async def one(i: int) -> None:
        async with gate:
            try:
                ended[i] = await _join_study(settings, offer, i, parts[i])
            except ShoalError as error:
                ended[i] = error
            on_progress(_format_counts(ended, n))

    async with asyncio.TaskGroup() as group:
        for i in range(n):
            group.create_task(one(i))
    return dict(sorted(ended.items()))


def _is_simultaneous(study: StudyHandle) -> bool:
    """Return whether participants wait for each other: for a round, or for the same window."""
    return study.protocol.holders.are_organisations or (
        study.has_tokens and study.protocol.has_packets
    )


async def _join_study(
    settings: FleetSettings, offer: Offer, i: int, rows: EncodedRows
) -> ParticipationResult:
    """Do what ``shoal join`` does, for a participant that agrees and sets a sufficient limit."""
    path, source = make_ledger_path(settings.directory, i), f"rows of participant {i}"
    async with open_session(
        path,
        settings.url,
        settings.clock,
        settings.entropy,
        settings.open_network_path(offer.manifest, i),
    ) as session:
        session.ledger.confirm_date()
        if session.find_joined(offer) is None:
            _set_sufficient_limit(session.ledger, offer)
            session.refuse_if_over_limits(session.price_offer(offer, source), None)
            session.agree(offer, source)
        result = await session.take_part(offer, rows, ignore_progress)
        if settings.out is not None and result.status != "aborted":
            await session.write_result(offer, result, settings.out / path.stem, ignore_progress)
        return result


def _set_sufficient_limit(ledger: LedgerFile, offer: Offer) -> None:
    """Set a limit that allows the study: these ledgers belong to no real person."""
    cost = 2 * grains_up(offer.study.plan.total_loss.epsilon)
    for usage in ledger.limits():
        grains = usage.spent + usage.held + cost
        ledger.set_limit(replace(usage.limit, grains=grains, delta_grains=10**17))


def _format_counts(results: Mapping[int, ParticipationResult | ShoalError], n: int) -> str:
    kinds = Counter(
        one.code if isinstance(one, ShoalError) else one.status for one in results.values()
    )
    return f"{len(results)} of {n}: " + ", ".join(
        f"{count} {kind}" for kind, count in sorted(kinds.items())
    )


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
    at_once: int = MAX_CONCURRENT,
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
        The number of participants.
    directory
        The directory of their ledgers.
    data
        The table that is split between them.
    holder
        A column of the table with the holder of each row.
    roster
        Make keys for all participants and write their roster to this file, instead of taking part.
    study
        The digest of the study, or its beginning, if the coordinator has several.
    at_once
        The most people or devices that take part at the same time.
    ca
        Certificates to trust instead of the system's, in PEM form.
    out
        A directory for the results, with a subdirectory for each participant.
    via
        How to reach the coordinator: direct, ohttp:RELAY-URL, tor or tor:HOST:PORT. Default:
        through the study's relay, or directly if it has none.
    from_addresses
        Connect each participant from a different address 127.0.x.y.
    """
    for name, n in (("participants", participants), ("at-once", at_once)):
        if not 1 <= n <= MAX_PARTICIPANTS:
            raise UsageError("USAGE-001", f"--{name} {n} is not from 1 to {MAX_PARTICIPANTS:,}.")
    if roster is not None and (url is not None or data is not None):
        raise UsageError(
            "USAGE-001",
            "--roster makes keys; it cannot be combined with an address or --data.",
            fix="Use --roster FILE alone first. Then, with the same --directory: URL --data "
            "rows.csv",
        )
    clock, entropy = SystemClock(), SystemEntropy()
    if roster is not None:
        members = make_fleet_roster(directory, participants, clock, entropy)
        _write_roster(
            roster,
            "\n".join(
                f'[[member]]\nname = "{member.name}"\nkey = "{member.key.hex()}"\n'
                for member in members
            ),
        )
        print(f"wrote     {escape_text(str(roster))}: {format_count(len(members), 'member')}")
        print(f"\nnext      shoal serve study.toml --roster {shell_quote(roster)}")
        return
    if url is None or data is None:
        raise UsageError(
            "USAGE-001",
            "A fleet needs an address and a table.",
            fix="Give both: URL --data rows.csv, or make keys: --roster FILE",
        )
    print(
        "This is for tests and demonstrations: the person who runs it has all rows.",
        file=sys.stderr,
    )
    settings = FleetSettings(url, directory, clock, entropy, ca, out, via, from_addresses)
    ended = run_async(
        run_fleet(
            settings,
            tables.read_table_file(data),
            participants,
            study=study,
            holder=holder,
            max_concurrent=at_once,
            on_progress=_show_progress,
        )
    )
    print(end="\n" if sys.stderr.isatty() else "", file=sys.stderr)
    print(_format_counts(ended, participants))
    failed = [one for one in ended.values() if isinstance(one, ShoalError)]
    if failed:
        raise failed[0]


def _show_progress(line: str) -> None:
    print(
        f"\r{line}" if sys.stderr.isatty() else line,
        end="" if sys.stderr.isatty() else "\n",
        file=sys.stderr,
        flush=True,
    )


def _make_directory(directory: Path) -> None:
    """Create the directory of a fleet if it does not exist."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise _unwritable_error("directory", directory, error) from None


def _write_roster(roster: Path, text: str) -> None:
    """Write a roster; never overwrite a file with other content."""
    try:
        if roster.exists() and roster.read_bytes() != text.encode():
            raise UsageError(
                "USAGE-001",
                f"{escape_text(str(roster))} already exists and is not the roster of this fleet.",
                fix="Give a new file: --roster FILE",
            )
        roster.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:
        raise _unwritable_error("roster", roster, error) from None


def _unwritable_error(option: str, path: Path, error: OSError | ValueError) -> UsageError:
    reason = error.strerror if isinstance(error, OSError) else "this is not a valid file name"
    reason = "a file with this name exists" if isinstance(error, FileExistsError) else reason
    return UsageError(
        "USAGE-001",
        f"The {option} {escape_text(str(path))} cannot be written: {reason}.",
        fix=f"Give another path: --{option} PATH",
    )


def _print_error(error: ShoalError) -> None:
    print(error, file=sys.stderr)


if __name__ == "__main__":
    runtime.install_sigterm_handler()
    app = runtime.make_app("python -m shoal.cli.fleet")
    app.default(main)
    sys.exit(
        runtime.run_app(
            app, sys.argv[1:], _print_error, "python -m shoal.cli.fleet --help lists the options."
        )
    )
