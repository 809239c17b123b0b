"""From a manifest and a participant's table to the machine that answers for it, whatever the protocol."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from shoal.crypto.roster import Identity, Roster
from shoal.domain import Columns
from shoal.errors import LocalProtocolError, RemoteProtocolError, SpecError
from shoal.names import counted
from shoal.participant.journal import Role
from shoal.protocols.anonml.peer import AnonMLPeer
from shoal.protocols.ddml.peer import DDMLPeer
from shoal.protocols.machines import Peer
from shoal.protocols.pfds.paper import Points
from shoal.protocols.pfds.params import Rows
from shoal.protocols.pfds.reader import Reader
from shoal.protocols.pfds.sharing_peer import SharingPeer, SharingReader
from shoal.protocols.pfds.summing_peer import SummingPeer
from shoal.protocols.pfds.sums import SumScript
from shoal.protocols.pfds.tables_peer import TablesPeer
from shoal.protocols.sdq.params import Table
from shoal.protocols.sdq.peer import SDQPeer
from shoal.protocols.sums.member import Member
from shoal.protocols.sums.terms import Terms
from shoal.study import anonml, ddml, pfds, sdq
from shoal.study.manifest import Manifest
from shoal.tables import limit_rows

Encoded = tuple[dict[str, npt.NDArray[Any]], npt.NDArray[Any]]


def encode(manifest: Manifest, table: Columns) -> Encoded:
    """A table as the study's schema encodes it: of each person, where the study tells people apart, as many rows as it allows.

    Raises
    ------
    SpecError
        A column is not there, or a cell does not fit; the message names the column.
    """
    study = manifest.study
    if study.data is not None:
        table, _ = limit_rows(table, study.data.person, study.data.max_rows_per_person)
    schema = study.schema()
    columns, labels = schema.encode(table), schema.encode_label(table)
    if study.protocol == "anonml" and len(labels) != 1:
        raise SpecError(
            "DATA-007",
            f"The data has {counted(len(labels), 'row')}; in this study everyone has one.",
            why="What it promises, it promises to a person, and takes one row for one person.",
            fix="Give a table with your own row alone.",
        )
    return columns, labels


def peer_of(
    manifest: Manifest,
    table: Columns | None,
    identity: Identity,
    *,
    ticket: bytes = b"",
    position: int | None = None,
    role: Role = "sharer",
) -> Peer[Any]:
    """The machine that answers for a participant.

    Parameters
    ----------
    manifest, table
        The study, and the participant's data; a reader may have none.
    identity
        The key under which it takes part; where there is a roster, that of its place on it.
    ticket
        What stands for the participant in AnonML.
    position
        Its place among the holders of a PFDS study without a roster, as the coordinator says: it decides which tables are asked of it.
    role
        Whether it answers.

    Raises
    ------
    SpecError
        The table does not fit the study, or there is none (``DATA-006``); or the key is not on the roster (``MANIFEST-002``).
    """
    study, digest = manifest.study, manifest.digest
    if role == "reader":
        return _reader(manifest, table)
    if table is None:
        raise SpecError("DATA-006", "There is no data to answer from.", fix="Give a table: --data FILE")
    columns, labels = encode(manifest, table)
    if study.protocol == "anonml":
        return AnonMLPeer(digest, anonml.script_of(study, digest), ticket, columns, labels)
    if study.protocol == "ddml":
        return DDMLPeer(digest, ddml.params_of(study), columns, labels)
    if study.protocol == "sdq":
        figures = sdq.params_of(study)
        threshold = len(manifest.roster) if figures.trust == "local" else figures.minimum
        member = _member(manifest, identity, threshold)
        return SDQPeer(sdq.script_of(study), member, Table.of(figures, columns, labels), sdq.free_of(study))
    params = pfds.params_of(study)
    if params.trust == "secure-sum":
        return SummingPeer(SumScript(params), _member(manifest, identity, params.minimum), Rows.of(params, columns, labels))
    place = _place(manifest, identity, params.n_holders, position)
    if params.variant == "paper":
        name = manifest.roster[place].name if manifest.roster else f"holder-{place}"
        return SharingPeer(params, digest, name, Points.of(params, columns, labels))
    return TablesPeer(params, digest, place, Rows.of(params, columns, labels))


def check_role(manifest: Manifest, role: Role) -> None:
    """Refuse to read a study that has no readers: ``HOST-003``."""
    if role == "reader" and manifest.study.protocol != "pfds":
        what = f"A study of {manifest.study.protocol} has no readers."
        raise SpecError("HOST-003", what, why="What it comes to is published by the coordinator.", fix="Take part, or ask for the model.")


def _reader(manifest: Manifest, table: Columns | None) -> Peer[Any]:
    check_role(manifest, "reader")
    params = pfds.params_of(manifest.study)
    if params.variant == "paper":
        return SharingReader(params, manifest.digest)
    return Reader(params, manifest.digest, None if table is None else Rows.of(params, *encode(manifest, table)))


def _place(manifest: Manifest, identity: Identity, n_holders: int, position: int | None) -> int:
    """Where a holder stands: on the roster by its key, otherwise where the coordinator has put it."""
    if manifest.roster:
        return _seat(manifest, identity)
    if position is None:
        raise LocalProtocolError("PROTO-001", "A holder was to answer before it was enrolled.")
    if not 0 <= position < n_holders:
        what = f"The coordinator gives a holder the place {position} among {n_holders}."
        raise RemoteProtocolError("NET-002", what, why="Nothing was sent.", fix="Ask its analyst; shoal leave gives the study up.")
    return position


def _seat(manifest: Manifest, identity: Identity) -> int:
    keys = [member.key for member in manifest.roster]
    if identity.public not in keys:
        raise SpecError(
            "MANIFEST-002",
            "Your key is not on the roster of the study.",
            why=f"It is {identity.public.hex()}.",
            fix="Send it to the analyst (shoal identity), who makes the roster; or use the ledger whose key is on it: --ledger PATH",
        )
    return keys.index(identity.public)


def _member(manifest: Manifest, identity: Identity, threshold: int) -> Member:
    seat = _seat(manifest, identity)
    names, keys = zip(*((member.name, member.key) for member in manifest.roster), strict=True)
    return Member(Terms(manifest.digest, Roster(names, keys), threshold), seat, identity)
