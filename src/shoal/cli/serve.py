"""``shoal serve``: publish studies, and coordinate them over HTTP until told to stop."""

from __future__ import annotations

import importlib.util
import json as json_format
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.cli.tokens import Tokens, tokens_of
from shoal.clock import SystemClock
from shoal.entropy import SystemEntropy
from shoal.errors import SpecError, UsageError
from shoal.names import counted, shell_word, shown
from shoal.study.load import parse, read_text
from shoal.study.manifest import Manifest, Member
from shoal.study.plan import make_plan
from shoal.study.query_files import load_queries
from shoal.study.rosters import load_roster
from shoal.study.unfinished import FIX, drafts_in

if TYPE_CHECKING:
    from shoal.coordinator.store.base import Hosted
    from shoal.protocols.sdq.queries import Query

MOST_WORKERS = 256
MOST_INVITATIONS = 100_000

_LINES = {"epoch": "epoch", "relay": "relay", "ends": "ends", "join": "join", "because": "reason", "model": "model"}
"""What is said of a study, where there is something to say: words in front of it, and where it is."""


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
    json: bool = False,
) -> None:
    """Publish studies, and coordinate them over HTTP until told to stop.

    A study that the store has already goes on; without any, all that the store has are served.

    Parameters
    ----------
    study
        Study files.
    host
        The address to listen on.
    port
        The port to listen on; 0 is any that is free.
    store
        Where studies are kept: sqlite:PATH or postgresql://USER@HOST/DATABASE. Its password is best kept in PostgreSQL's own file.
    models
        Where the instances of DDML's models are kept, if not in the store: redis://HOST:PORT/DB.
    tls_cert
        A PEM file: the certificate, and those that it rests on. Needed to be reached from other machines.
    tls_key
        A PEM file: the certificate's private key.
    without_tls
        Listen to other machines without TLS all the same, because something in front of it speaks TLS.
    workers
        Processes that answer requests.
    roster
        Names and keys of the databases or holders, a TOML file of [[member]] blocks as shoal identity prints them.
    invite
        Print so many codes; only who has one can enrol in the studies that begin now. Those of an epoch share them: in a further study of
        it they are for new people only, and 0 if there are none.
    patience
        Seconds that a phase or step waits for answers, in studies that begin now.
    queries
        Counts that an SDQ study is asked besides its model, a TOML file of [[query]] blocks.
    epoch
        A name: who has registered in one study of an epoch takes part in all of them, without registering again or another code.
    relay
        The address of a relay that somebody else runs, through which anonymous packets come shuffled: shoal relay --to URL
    tickets
        Admit anonymous packets by tickets instead of tokens: this coordinator could then note whose ticket is whose.
    json
        Print one JSON object when it listens.
    """
    _check_options(port, workers, invite, patience, models)
    members = () if roster is None else load_roster(roster)
    manifests = [_manifest(path, members) for path in study]
    tokens = tokens_of(manifests, epoch, relay, tickets=tickets)
    if members and not any(manifest.roster for manifest in manifests):
        raise UsageError("SERVE-004", "A roster is given, but no study of sdq or pfds to which it belongs.", fix="Name the study's file.")
    asked = {} if queries is None else _asked(queries, manifests)
    # All of the above is done without what a coordinator needs, which may not be installed.
    _check_installed()
    from shoal.coordinator.publishing import A_DAY
    from shoal.coordinator.settings import Settings
    from shoal.transport.listening import check_exposure, is_open_to_others, listen, resolve, tls_context, url_for_others, url_of

    # Whatever its time: it may have begun long ago.
    _check(manifests, tokens, asked, 0, A_DAY, is_invited=False)
    if (tls_cert is None) != (tls_key is None):
        raise UsageError("SERVE-002", "TLS needs a certificate and its key; only one of them is given.", fix="--tls-cert F --tls-key F")
    has_tls = tls_cert is not None and tls_key is not None
    resolve(host, port)
    check_exposure(host, has_tls=has_tls, without_tls=without_tls)
    if tls_cert is not None and tls_key is not None:
        tls_context(tls_cert, tls_key)
        if is_open_to_others(tls_key):
            warning = f"Every user of this machine can read the key {shown(str(tls_key))}: chmod o-r {shell_word(tls_key)}"
            print(f"warning     {warning}", file=sys.stderr)
    settings = Settings(store, models, None if tls_cert is None else str(tls_cert), None if tls_key is None else str(tls_key))
    with listen(host, port) as listener:
        address = url_of(host, listener, has_tls=has_tls)
        notice = Notice(address, url_for_others(host, address, has_tls=has_tls), json)
        try:
            _open_up(notice, settings, manifests, tokens, asked, invite, None if patience is None else round(1000 * patience))
            if workers == 1:
                from shoal.coordinator.worker import run

                run(settings, listener, notice.show)
            else:
                from shoal.coordinator.supervisor import Supervisor

                Supervisor(workers, listener, settings).run(notice.show)
        finally:
            # Secrets that were made are shown whatever happens next: they cannot be had again.
            if notice.has_secrets:
                notice.show()


@dataclass
class Notice:
    """What is said when the coordinator listens; once.

    Parameters
    ----------
    address, reached_at
        Where it listens, and what participants are told.
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
        """Where a browser finds the studies."""
        return f"{self.reached_at}/"

    @property
    def has_secrets(self) -> bool:
        return bool(self.analyst_key or self.invitations)

    def show(self) -> None:
        """Print it, unless it was printed before."""
        if self.is_shown:
            return
        self.is_shown = True
        print(json_format.dumps(self.to_dict(), allow_nan=False) if self.json else str(self), flush=True)

    def to_dict(self) -> dict[str, Any]:
        secret = {} if self.analyst_key is None else {"analyst_key": self.analyst_key}
        where = {"address": self.address, "dashboard": self.dashboard}
        return {**where, "studies": self.studies, **secret, "invitations": self.invitations}

    def __str__(self) -> str:
        lines = [f"listens     {self.address}   (stops with Ctrl-C; goes on where it was when it is started again)"]
        lines += [f"dashboard   {self.dashboard}"]
        for one in self.studies:
            label = one["label"]
            lines += ["", f"study       {one['title']}   {one['short']}   {one['standing']}"]
            lines += [f"            {label['protocol']}, trust {label['trust']}: {one['price']}"]
            lines += [f"{word:<12}{one[key]}" for word, key in _LINES.items() if one[key] is not None]
            lines += [f"invitation  {code}" for code in self.invitations.get(one["digest"], ())]
            if one["is_new"] and one["by_invitation"] and one["digest"] not in self.invitations:
                lines += ["invitation  those of its epoch are good here; its members need none"]
        lines += (
            []
            if self.studies
            else ["", "There is no study yet: shoal serve STUDY publishes one, and so does the dashboard with the analyst's key."]
        )
        if "//HOST" in self.reached_at:
            lines += ["", "HOST stands for the name by which participants reach this coordinator."]
        if self.invitations:
            lines += ["", "Each invitation is for one participant. They are shown this once."]
            if any(one["epoch"] is not None for one in self.studies if one["digest"] in self.invitations):
                lines += ["It is good for all studies of its epoch. Whoever has one of the epoch, used or not, must not get another."]
        if self.lacks_invitations:
            lines += ["", "No invitation was made: --invite is for studies that begin now, and have no roster."]
        if self.analyst_key is not None:
            lines += ["", f"analyst's key  {self.analyst_key}"]
            lines += [
                "It is shown this once: keep it where only the analyst can read it. It publishes studies, and ends them before their time:"
            ]
            lines += [f"shoal close {shell_word(self.reached_at)} STUDY --key-file FILE"]
        return "\n".join(lines)


def _open_up(
    notice: Notice,
    settings: Any,
    drafts: Sequence[Manifest],
    tokens: Tokens,
    asked: dict[str, tuple[Query, ...]],
    n_invitations: int,
    patience: int | None,
) -> None:
    """Publish what is new, make the analyst's key at the first start, and note what is to be told."""
    from shoal.coordinator.keys import Keys
    from shoal.coordinator.models import open_models
    from shoal.coordinator.publishing import check_epoch, draw_invitations, first_start, hosted_of, publish
    from shoal.coordinator.store.opening import open_store

    entropy, now = SystemEntropy(), round(1000 * SystemClock().now().timestamp())
    with ExitStack() as stack:
        if settings.models is not None:
            # They come first: where they cannot be reached, no file of a store is left behind.
            stack.enter_context(open_models(settings.models, settings.store))
        store = stack.enter_context(open_store(settings.store))
        if not store.studies():
            # All of them would begin now. What cannot is refused before there is a key that is told once.
            _check(drafts, tokens, asked, now, patience, is_invited=n_invitations > 0)
        secrets, notice.analyst_key = first_start(store, entropy)
        issuing = Keys(secrets.signing_seed).issuing if any(map(tokens.are_for, drafts)) else None
        manifests = [tokens.manifest(draft, issuing) for draft in drafts]
        begins = {one.digest.hex(): one for one in manifests if store.study(one.digest.hex()) is None}
        codes = _codes(begins, lambda: draw_invitations(n_invitations, entropy))
        # Where one of them cannot be published, none is.
        for digest, one in begins.items():
            is_invited, queries = bool(codes[digest]), asked.get(digest, ())
            check_epoch(store, hosted_of(one, now, patience=patience, by_invitation=is_invited, queries=queries, issuing=issuing))
        for digest, one in begins.items():
            queries = asked.get(digest, ())
            _, is_new = publish(store, one, now, patience=patience, invitations=codes[digest], queries=queries, issuing=issuing)
            notice.invitations |= {digest: codes[digest]} if is_new and codes[digest] else {}
        notice.lacks_invitations = n_invitations > 0 and not notice.invitations
        served = store.studies()
        notice.studies = [_described(hosted, notice.reached_at, hosted.digest in begins, len(served)) for hosted in served]


def _codes(begins: dict[str, Manifest], draw: Callable[[], tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Codes by the studies that begin: for each that has no roster, but for those of one epoch together."""
    codes: dict[str, tuple[str, ...]] = {}
    epochs: set[str] = set()
    for digest, one in begins.items():
        codes[digest] = () if one.roster or one.epoch in epochs else draw()
        epochs |= set() if one.epoch is None else {one.epoch}
    return codes


def _check(
    drafts: Sequence[Manifest], tokens: Tokens, asked: dict[str, tuple[Query, ...]], now: int, patience: int | None, *, is_invited: bool
) -> None:
    """Refuse studies that cannot be served, whatever the coordinator's keys are: those in the store are not there yet."""
    from shoal.coordinator.keys import Keys
    from shoal.coordinator.publishing import hosted_of

    keys = Keys(SystemEntropy().bytes(32))
    for draft in drafts:
        issuing = keys.issuing if tokens.are_for(draft) else None
        by_invitation, queries = is_invited and not draft.roster, asked.get(draft.digest.hex(), ())
        one = tokens.manifest(draft, issuing)
        hosted_of(one, now, patience=patience, by_invitation=by_invitation, queries=queries, issuing=issuing)


def _described(hosted: Hosted, address: str, is_new: bool, n_studies: int) -> dict[str, Any]:
    from shoal.coordinator.publishing import end_of
    from shoal.study.wording_tokens import statement_of
    from shoal.transport.routes import study_route

    manifest = Manifest.from_bytes(hosted.manifest)
    plan = make_plan(manifest.study, manifest.digest)
    label = statement_of(manifest, plan)
    which = f" --study {hosted.digest[:12]}" if n_studies > 1 else ""
    invitation = " --invitation CODE" if hosted.by_invitation else ""
    is_open = hosted.status == "open"
    return {
        "digest": hosted.digest,
        "short": manifest.short,
        "title": label.title,
        "status": hosted.status,
        "is_new": is_new,
        "standing": "begins" if is_new else "goes on" if is_open else hosted.status,
        "price": str(plan.everything),
        "patience_seconds": hosted.patience / 1000,
        "has_tokens": hosted.scope is not None,
        "epoch": manifest.epoch,
        "by_invitation": hosted.by_invitation,
        "relay": manifest.relay,
        "ends": end_of(manifest, hosted) if is_open else None,
        "join": f"shoal join {shell_word(address)} --data rows.csv{which}{invitation}" if is_open else None,
        "reason": None if hosted.reason is None else " ".join(hosted.reason.split()),
        "model": f"{address}{study_route(hosted.digest, 'model')}" if hosted.status == "done" else None,
        "label": label.to_dict(),
    }


def _manifest(path: Path, members: tuple[Member, ...]) -> Manifest:
    text = read_text(path)
    study = parse(text, path.name)
    left = drafts_in(text)
    if left:
        raise SpecError("SERVE-005", f"{shown(str(path))} is a draft still. {' '.join(left)}", fix=FIX)
    manifest = Manifest(study, roster=members if study.protocol in ("sdq", "pfds") else ())
    make_plan(study, manifest.digest)
    return manifest


def _asked(path: Path, manifests: Sequence[Manifest]) -> dict[str, tuple[Query, ...]]:
    """The counts by the digest of the study that they are asked of."""
    allowing = [manifest for manifest in manifests if manifest.study.protocol == "sdq" and manifest.study.queries is not None]
    if len(allowing) != 1:
        what = (
            f"{shown(str(path))} is for one study of sdq with [queries], and {len(allowing) or 'none'} of those that are named have them."
        )
        fix = "Start each such study by itself, with its own --queries." if allowing else "Name the study's file, or leave --queries out."
        raise SpecError("SDQ-002", what, fix=fix)
    return {allowing[0].digest.hex(): load_queries(path, allowing[0].study.schema())}


def _check_options(port: int, workers: int, invite: int, patience: float | None, models: str | None) -> None:
    numbers = {"port": (port, 0, 65_535), "workers": (workers, 1, MOST_WORKERS), "invite": (invite, 0, MOST_INVITATIONS)}
    fixes = {"port": "--port 8700, or --port 0 for any that is free", "workers": "--workers 1", "invite": "--invite 100"}
    for name, (value, least, most) in numbers.items():
        if not least <= value <= most:
            raise UsageError("USAGE-001", f"--{name} {value} is not from {least} to {most:,}.", fix=fixes[name])
    if patience is not None and not 0.001 <= patience <= 366 * 86_400:
        raise UsageError("USAGE-001", f"--patience {patience:g} is not a number of seconds up to a year.", fix="--patience 3600")
    if workers > 1 and models == "memory:":
        what = f"{counted(workers, 'worker')} cannot share instances in memory."
        raise UsageError("USAGE-001", what, fix="Leave --models out, or name a Redis server.")


def _check_installed() -> None:
    if any(
        importlib.util.find_spec(name) is None for name in ("uvicorn", "uvloop", "httptools", "starlette", "prometheus_client", "jinja2")
    ):
        raise UsageError("USAGE-002", "A coordinator needs libraries that are not installed.", fix="pip install 'shoal[serve]'")
