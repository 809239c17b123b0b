"""``shoal serve``: publish studies and coordinate them over HTTP.

`shoal.cli.main` loads it. Options, study files, rosters and queries are checked first, then
addresses and TLS files, then the store: a command that fails leaves nothing behind. The analyst's
key and invitations are shown once, even if the service fails later, because they cannot be
recovered.
"""

from __future__ import annotations

import json as json_format
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.cli.arguments import MEGABYTE, check_body_memory, check_range
from shoal.clock import SystemClock
from shoal.entropy import SystemEntropy
from shoal.errors import SpecError, UsageError, require_extra
from shoal.study.attachments import load_queries, load_roster
from shoal.study.delivery import is_anonymous
from shoal.study.handle import StudyHandle
from shoal.study.loader import parse_study_text, read_study_text
from shoal.study.manifest import Manifest, RosterMember
from shoal.study.plan import make_plan
from shoal.study.registry import get_protocol
from shoal.study.starters.drafts import DRAFT_FIX, find_unfinished_in_text
from shoal.text import escape_text, format_count, shell_quote
from shoal.transport.api import Issuing

if TYPE_CHECKING:
    from shoal.coordinator.store.base import StudyRecord
    from shoal.coordinator.worker import WorkerSettings
    from shoal.protocols.sdq.queries import SDQQuery

QueriesByStudy = dict[str, tuple["SDQQuery", ...]]
"""Digest of a draft -> free counts that its study answers."""
TrialStudy = tuple[StudyHandle, Issuing | None]
"""A study with keys that no coordinator has, and these keys."""

MOST_WORKERS = 256
MOST_INVITATIONS = 100_000

_STUDY_LINES = {
    "epoch": "epoch",
    "relay": "relay",
    "ends": "ends",
    "join": "join",
    "because": "reason",
    "model": "model",
}
"""Heading of a line about a study -> key of its value; lines without a value are left out."""


@dataclass(frozen=True)
class TokenOptions:
    """How anonymous packets are admitted.

    Parameters
    ----------
    epoch
        Epoch of the credentials; None if each study has its own credentials.
    relay
        Address of a relay; None if packets come directly.
    is_enabled
        Whether packets are admitted by tokens; otherwise by tickets.
    """

    epoch: str | None
    relay: str | None
    is_enabled: bool = True

    def is_needed_for(self, manifest: Manifest) -> bool:
        """Return whether a study needs tokens."""
        return self.is_enabled and is_anonymous(manifest.study)

    def make_manifest(self, draft: Manifest, issuing: Issuing | None) -> Manifest:
        """Return a manifest with the coordinator's keys, if the study needs tokens."""
        if issuing is None or not self.is_needed_for(draft):
            return draft
        return replace(
            draft,
            issuer_key=bytes.fromhex(issuing.issuer_key),
            gateway_key=bytes.fromhex(issuing.gateway_key),
            relay=self.relay,
            epoch=self.epoch,
        )


def make_token_options(
    manifests: Sequence[Manifest], epoch: str | None, relay: str | None, *, tickets: bool
) -> TokenOptions:
    """Return how the given studies admit packets.

    Raises
    ------
    UsageError
        ``USAGE-001``: an option applies to none of the studies. ``USAGE-002``: the libraries for
        tokens are not installed.
    """
    tokens = TokenOptions(epoch, relay, not tickets)
    are_needed = any(map(tokens.is_needed_for, manifests))
    for option, value in (("--epoch", epoch), ("--relay", relay)):
        if value is not None and not are_needed:
            what = "with --tickets" if tickets else "without a study with anonymous packets"
            raise UsageError(
                "USAGE-001", f"{option} cannot be used {what}.", fix=f"Leave {option} out."
            )
    if are_needed:
        purpose = "Admission of anonymous packets by tokens"
        require_extra("anonymous", "pyblst", "py_arkworks_bls12381", purpose=purpose)
    return tokens


@dataclass(frozen=True)
class Publication:
    """The studies on the command line, and how they are published.

    Parameters
    ----------
    drafts
        Manifests without the coordinator's keys.
    n_invitations
        Invitation codes for each new study without a roster.
    phase_timeout
        Milliseconds; None computes it from the study.
    """

    drafts: Sequence[Manifest]
    tokens: TokenOptions
    queries: QueriesByStudy
    n_invitations: int = 0
    phase_timeout: int | None = None

    @property
    def needs_tokens(self) -> bool:
        """Whether any of the studies needs tokens."""
        return any(map(self.tokens.is_needed_for, self.drafts))


def serve(
    *study: Path,
    host: str = "127.0.0.1",
    port: int = 8700,
    store: str = "sqlite:coordinator.db",
    models: str | None = None,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    without_tls: bool = False,
    workers: int = 1,
    roster: Path | None = None,
    invite: int = 0,
    patience: float | None = None,
    queries: Path | None = None,
    epoch: str | None = None,
    relay: str | None = None,
    tickets: bool = False,
    body_memory: int = 256,
    behind_proxy: bool = False,
    json: bool = False,
) -> None:
    """Publish studies and coordinate them over HTTP until Ctrl-C or SIGTERM.

    All studies of the store are served. Study files that the store does not have are published.

    Parameters
    ----------
    study
        Study files.
    host
        The address to listen on.
    port
        The port to listen on; 0 for any free port.
    store
        Where studies are stored: sqlite:PATH or postgresql://USER@HOST/DATABASE. Keep its password
        in PostgreSQL's password file.
    models
        Where DDML's model instances are stored, if not in the store: redis://HOST:PORT/DB.
    tls_cert
        A PEM file: the certificate, followed by its issuers' certificates. Needed if other machines
        are to connect.
    tls_key
        A PEM file: the private key of the certificate.
    without_tls
        Let other machines connect without TLS, because a proxy in front terminates TLS.
    workers
        Number of processes that answer requests.
    roster
        Names and keys of the databases or holders: a TOML file of [[member]] blocks, as shoal
        identity prints them.
    invite
        Print this number of invitation codes for each new study; only people with a code can
        enrol. The studies of an epoch share their codes: give 0 for a further study of an epoch, or
        the number of new people.
    patience
        Seconds that a phase or step of a new study waits for answers.
    queries
        Free counts that an SDQ study answers in addition to its model: a TOML file of [[query]]
        blocks.
    epoch
        A name. People who have registered in one study of an epoch take part in all of its studies
        without registering again.
    relay
        The address of a relay that somebody else runs; it shuffles anonymous packets: shoal relay
        --to URL
    tickets
        Admit anonymous packets by tickets instead of tokens. With tickets, this coordinator could
        link packets to participants.
    body_memory
        Megabytes that unfinished and waiting requests may use in each process; requests beyond this
        limit are answered with 503.
    behind_proxy
        Do not limit the connections of one address, because a proxy in front makes all of them.
        --without-tls implies it.
    json
        Print one JSON object when the service listens.
    """
    _check_options(port, workers, invite, patience, models)
    check_body_memory(body_memory)
    members = () if roster is None else load_roster(roster)
    drafts = [_read_manifest(path, members) for path in study]
    tokens = make_token_options(drafts, epoch, relay, tickets=tickets)
    if members and not any(draft.roster for draft in drafts):
        raise UsageError(
            "SERVE-004",
            "A roster is given, but no study that has one.",
            why="Studies of sdq and pfds have rosters.",
            fix="Add the study file: shoal serve STUDY --roster FILE",
        )
    publication = Publication(
        drafts,
        tokens,
        {} if queries is None else _read_queries(queries, drafts),
        invite,
        None if patience is None else round(1000 * patience),
    )
    # The checks above work without the libraries of a coordinator.
    require_extra(
        "serve",
        *("uvicorn", "uvloop", "httptools", "starlette", "prometheus_client", "jinja2"),
        purpose="A coordinator",
    )
    from shoal.coordinator.publishing import DAY_MILLISECONDS
    from shoal.coordinator.worker import WorkerSettings
    from shoal.transport.server import (
        check_exposure,
        format_public_url,
        format_url,
        open_listener,
        open_tls_context,
        resolve_address,
    )

    # The time and timeout do not matter here: a study may have been published long ago.
    trials = _make_trial_studies(publication)
    _check_servable(
        replace(publication, n_invitations=0, phase_timeout=DAY_MILLISECONDS), trials, now=0
    )
    resolve_address(host, port)
    has_tls = open_tls_context(tls_cert, tls_key) is not None
    check_exposure(host, has_tls=has_tls, without_tls=without_tls)
    settings = WorkerSettings(
        store,
        models,
        None if tls_cert is None else str(tls_cert),
        None if tls_key is None else str(tls_key),
        body_memory * MEGABYTE,
        behind_proxy or without_tls,
    )
    with open_listener(host, port) as listener:
        address = format_url(host, listener, has_tls=has_tls)
        notice = CoordinatorNotice(address, format_public_url(host, address, has_tls=has_tls), json)
        try:
            _publish_studies(notice, settings, publication, trials)
            if workers == 1:
                from shoal.coordinator.worker import run

                run(settings, listener, notice.show)
            else:
                from shoal.coordinator.supervisor import Supervisor

                Supervisor(workers, listener, settings).run(notice.show)
        finally:
            # New secrets are shown even after a failure: they cannot be recovered.
            if notice.has_secrets:
                notice.show()


@dataclass
class CoordinatorNotice:
    """The output when the coordinator listens; it is printed once.

    Parameters
    ----------
    address
        Where the coordinator listens.
    reached_at
        The address that participants use.
    """

    address: str
    reached_at: str
    json: bool
    studies: list[dict[str, Any]] = field(default_factory=list)
    analyst_key: str | None = field(default=None, repr=False)
    invitations: dict[str, tuple[str, ...]] = field(default_factory=dict, repr=False)
    lacks_invitations: bool = False
    is_shown: bool = False

    @property
    def dashboard(self) -> str:
        """Address of the dashboard."""
        return f"{self.reached_at}/"

    @property
    def has_secrets(self) -> bool:
        return bool(self.analyst_key or self.invitations)

    def show(self) -> None:
        """Print the notice, unless it was printed before."""
        if self.is_shown:
            return
        self.is_shown = True
        print(
            json_format.dumps(self.to_dict(), allow_nan=False) if self.json else str(self),
            flush=True,
        )

    def to_dict(self) -> dict[str, Any]:
        secret = {} if self.analyst_key is None else {"analyst_key": self.analyst_key}
        where = {"address": self.address, "dashboard": self.dashboard}
        return {**where, "studies": self.studies, **secret, "invitations": self.invitations}

    def __str__(self) -> str:
        lines = [
            f"listens     {self.address}   (press Ctrl-C to stop; run the same command to resume)",
            f"dashboard   {self.dashboard}",
        ]
        for study in self.studies:
            lines += ["", *self._list_study_lines(study)]
        if not self.studies:
            lines += [
                "",
                "The store has no studies yet. Publish one with shoal serve STUDY, or on the "
                "dashboard with the analyst's key.",
            ]
        if "//HOST" in self.reached_at:
            lines += ["", "Replace HOST by the name under which participants reach this service."]
        if self.invitations:
            lines += ["", "Each invitation is for one participant. They are not shown again."]
            invited = [one for one in self.studies if one["digest"] in self.invitations]
            if any(one["epoch"] is not None for one in invited):
                lines += [
                    "An invitation is valid in all studies of its epoch. Give each person only one "
                    "invitation of an epoch."
                ]
        if self.lacks_invitations:
            lines += [
                "",
                "No invitation was made: --invite applies to new studies without a roster.",
            ]
        if self.analyst_key is not None:
            lines += [
                "",
                f"analyst's key  {self.analyst_key}",
                "The key is not shown again: store it where only the analyst can read it. It "
                "publishes studies and closes them early:",
                f"shoal close {shell_quote(self.reached_at)} STUDY --key-file FILE",
            ]
        return "\n".join(lines)

    def _list_study_lines(self, study: dict[str, Any]) -> list[str]:
        label, codes = study["label"], self.invitations.get(study["digest"], ())
        status = "new" if study["is_new"] else study["status"]
        lines = [
            f"study       {study['title']}   {study['short']}   {status}",
            f"            {label['protocol']}, trust {label['trust']}: {study['price']}",
        ]
        lines += [
            f"{heading:<12}{study[key]}"
            for heading, key in _STUDY_LINES.items()
            if study[key] is not None
        ]
        lines += [f"invitation  {code}" for code in codes]
        if study["is_new"] and study["by_invitation"] and not codes:
            lines += ["invitation  the codes of its epoch are valid; its members need none"]
        return lines


def _publish_studies(
    notice: CoordinatorNotice,
    settings: WorkerSettings,
    publication: Publication,
    trials: Sequence[TrialStudy],
) -> None:
    """Publish new studies, create the analyst's key at the first start, and fill the notice."""
    from shoal.coordinator.ddml.instances import open_instance_store
    from shoal.coordinator.enrolment import CoordinatorKeys
    from shoal.coordinator.publishing import (
        add_schedule,
        check_epoch,
        draw_invitations,
        load_or_create_secrets,
        make_record,
        publish,
    )
    from shoal.coordinator.store import open_store

    entropy, now = SystemEntropy(), round(1000 * SystemClock().now().timestamp())
    make_manifest, phase_timeout = publication.tokens.make_manifest, publication.phase_timeout
    with ExitStack() as stack:
        if settings.models is not None:
            # First: if the instance store cannot be reached, no file of a store is left behind.
            stack.enter_context(open_instance_store(settings.models, settings.store))
        store = stack.enter_context(open_store(settings.store))
        if not store.list_studies():
            # All studies are new. Reject them before a key is created, which is shown once.
            _check_servable(publication, trials, now)
        secrets, notice.analyst_key = load_or_create_secrets(store, entropy)
        issuing = (
            CoordinatorKeys(secrets.signing_seed).public_keys if publication.needs_tokens else None
        )
        handles = [
            add_schedule(StudyHandle(make_manifest(draft, issuing)), now, phase_timeout, store)
            for draft in publication.drafts
        ]
        by_digest = {handle.digest.hex(): handle for handle in handles}
        new_studies = {key: one for key, one in by_digest.items() if store.find_study(key) is None}
        codes = _draw_codes(
            new_studies, lambda: draw_invitations(publication.n_invitations, entropy)
        )
        # If one of them cannot be published, none is.
        for digest, handle in new_studies.items():
            record = make_record(
                handle,
                now,
                phase_timeout=phase_timeout,
                by_invitation=bool(codes[digest]),
                queries=publication.queries.get(digest, ()),
                issuing=issuing,
            )
            check_epoch(store, record)
        for digest, handle in new_studies.items():
            _, is_new = publish(
                store,
                handle,
                now,
                phase_timeout=phase_timeout,
                invitations=codes[digest],
                queries=publication.queries.get(digest, ()),
                issuing=issuing,
            )
            notice.invitations |= {digest: codes[digest]} if is_new and codes[digest] else {}
        notice.lacks_invitations = publication.n_invitations > 0 and not notice.invitations
        records = store.list_studies()
        notice.studies = [
            _describe_study(
                record,
                new_studies.get(record.digest) or StudyHandle(Manifest.from_bytes(record.manifest)),
                notice.reached_at,
                is_new=record.digest in new_studies,
                is_only=len(records) == 1,
            )
            for record in records
        ]


def _draw_codes(
    new_studies: dict[str, StudyHandle], draw: Callable[[], tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Return the codes of new studies: none with a roster, one set for all of an epoch."""
    codes: dict[str, tuple[str, ...]] = {}
    epochs: set[str] = set()
    for digest, handle in new_studies.items():
        manifest = handle.manifest
        codes[digest] = () if manifest.roster or manifest.epoch in epochs else draw()
        epochs |= set() if manifest.epoch is None else {manifest.epoch}
    return codes


def _make_trial_studies(publication: Publication) -> list[TrialStudy]:
    """Return the studies with keys that no coordinator has, to check them before keys exist."""
    from shoal.coordinator.enrolment import CoordinatorKeys

    tokens, keys = publication.tokens, CoordinatorKeys(SystemEntropy().bytes(32))
    trials = []
    for draft in publication.drafts:
        issuing = keys.public_keys if tokens.is_needed_for(draft) else None
        trials.append((StudyHandle(tokens.make_manifest(draft, issuing)), issuing))
    return trials


def _check_servable(publication: Publication, trials: Sequence[TrialStudy], now: int) -> None:
    """Raise the error of a study that no coordinator can serve, with any keys."""
    from shoal.coordinator.publishing import add_schedule, make_record

    for draft, (handle, issuing) in zip(publication.drafts, trials, strict=True):
        make_record(
            add_schedule(handle, now, publication.phase_timeout),
            now,
            phase_timeout=publication.phase_timeout,
            by_invitation=publication.n_invitations > 0 and not draft.roster,
            queries=publication.queries.get(draft.digest.hex(), ()),
            issuing=issuing,
        )


def _describe_study(
    record: StudyRecord, handle: StudyHandle, address: str, *, is_new: bool, is_only: bool
) -> dict[str, Any]:
    from shoal.coordinator.publishing import describe_end
    from shoal.transport.api import study_route

    manifest, label = handle.manifest, handle.label()
    which = "" if is_only else f" --study {record.digest[:12]}"
    invitation = " --invitation CODE" if record.by_invitation else ""
    is_open = record.status == "open"
    return {
        "digest": record.digest,
        "short": manifest.short_digest,
        "title": label.title,
        "status": record.status,
        "is_new": is_new,
        "standing": "begins" if is_new else "goes on" if is_open else record.status,
        "price": str(handle.plan.total_loss),
        "patience_seconds": record.phase_timeout / 1000,
        "has_tokens": record.scope is not None,
        "epoch": manifest.epoch,
        "by_invitation": record.by_invitation,
        "relay": manifest.relay,
        "ends": describe_end(handle, record) if is_open else None,
        "join": f"shoal join {shell_quote(address)} --data rows.csv{which}{invitation}"
        if is_open
        else None,
        "reason": None if record.reason is None else " ".join(record.reason.split()),
        "model": f"{address}{study_route(record.digest, 'model')}"
        if record.status == "done"
        else None,
        "label": label.to_dict(),
    }


def _read_manifest(path: Path, members: tuple[RosterMember, ...]) -> Manifest:
    text = read_study_text(path)
    study = parse_study_text(text, path.name)
    unfinished = find_unfinished_in_text(text)
    if unfinished:
        raise SpecError(
            "SERVE-005",
            f"{escape_text(str(path))} is still a draft. {' '.join(unfinished)}",
            fix=DRAFT_FIX,
        )
    has_roster = get_protocol(study).holders.are_organisations
    manifest = Manifest(study, roster=members if has_roster else ())
    make_plan(study, manifest.digest)
    return manifest


def _read_queries(path: Path, drafts: Sequence[Manifest]) -> QueriesByStudy:
    """Read free counts; return them by the digest of the one study that allows them."""
    allowing = [
        draft
        for draft in drafts
        if get_protocol(draft.study).has_free_counts and draft.study.queries is not None
    ]
    if len(allowing) != 1:
        what = (
            f"{escape_text(str(path))} needs one study of sdq with [queries]; "
            f"{len(allowing) or 'none'} of the given studies have them."
        )
        fix = (
            "Start each such study in a separate command, with its own --queries."
            if allowing
            else "Add the study file, or leave --queries out."
        )
        raise SpecError("SDQ-002", what, fix=fix)
    return {allowing[0].digest.hex(): load_queries(path, allowing[0].study.schema())}


def _check_options(
    port: int, workers: int, invite: int, patience: float | None, models: str | None
) -> None:
    check_range("port", port, 0, 65_535, "--port 8700, or --port 0 for any free port")
    check_range("workers", workers, 1, MOST_WORKERS, "--workers 1")
    check_range("invite", invite, 0, MOST_INVITATIONS, "--invite 100")
    if patience is not None and not 0.001 <= patience <= 366 * 86_400:
        raise UsageError(
            "USAGE-001",
            f"--patience {patience:g} is not a number of seconds up to a year.",
            fix="--patience 3600",
        )
    if workers > 1 and models == "memory:":
        what = f"{format_count(workers, 'worker')} cannot share instances in memory."
        raise UsageError("USAGE-001", what, fix="Leave --models out, or give a Redis server.")
