"""The exception hierarchy, the table of error codes, and the commands that install extras.

Each error that a user can meet has a stable code, and a message of up to three parts: what is wrong
(with the value), why, and how to fix it. ``make docs`` writes ``docs/reference/errors.md`` from the
table below. A change must keep: a code keeps its meaning, and private values, tokens and shares
never enter a message.
"""

from __future__ import annotations

import importlib.util
import shlex
import sys
from pathlib import Path
from typing import ClassVar

CODES: dict[str, str] = {
    # usage
    "USAGE-001": "A command has an unknown argument, or an argument in a form that it cannot read.",
    "USAGE-002": "A required part of shoal is not installed. The message names the extra to "
    "install.",
    "USAGE-003": "A command was interrupted by its user or by the system. Files that it had "
    "written are complete.",
    "HELLO-001": "A process of the demonstration ended unexpectedly. The message contains its "
    "output.",
    # randomness and mechanisms
    "ENTROPY-001": "A real release would have used seeded randomness, which is for simulations "
    "only.",
    "MECH-001": "A parameter of a mechanism is outside the conditions of its theorem.",
    "MECH-002": "A value to be randomised is outside the mechanism's domain.",
    "MECH-003": "A report does not have the form that the mechanism produces.",
    # schema and data
    "SCHEMA-001": "A feature has no usable name, a name is used twice, or there are no features or "
    "no label.",
    "SCHEMA-002": "The public range of a numeric feature is not two rising, finite numbers.",
    "SCHEMA-003": "The public cut points of a numeric feature do not cut its range.",
    "SCHEMA-004": "The values of a categorical feature are not two or more different texts.",
    "SCHEMA-005": "The public groups of a categorical feature do not contain each value exactly "
    "once.",
    "SCHEMA-006": "The number of buckets or the length of n-grams of a text feature is not valid.",
    "DATA-001": "The data lacks a column that the study needs.",
    "DATA-002": "A number is outside the public range that the study declares.",
    "DATA-003": "A value is not among those that the study declares.",
    "DATA-004": "A cell of a numeric column cannot be read as a finite number.",
    "DATA-005": "A value is missing in a column that the study declares to be complete.",
    "DATA-006": "A participant's data cannot be read: the file does not exist, is too large, or is "
    "not in the format of its name.",
    "DATA-007": "A table is not well formed: rows of different lengths, a column without a unique "
    "name, or text that is not UTF-8.",
    # data fetching
    "DATA-101": "The host of a public dataset cannot be reached.",
    "DATA-102": "The host of a public dataset does not answer with the file.",
    "DATA-103": "The download of a public dataset ended too early.",
    "DATA-104": "A download, or a file inside it, is much larger than the dataset.",
    "DATA-105": "A download is not the published archive, or does not contain the table of the "
    "dataset.",
    "DATA-106": "A fetched dataset differs from the one that tests and benchmarks expect.",
    "DATA-107": "A fetched dataset cannot be written to its directory.",
    # study, manifest and plan
    "SPEC-001": "The study file cannot be read: it does not exist, is too large, or is not UTF-8 "
    "text.",
    "SPEC-002": "The study file is not TOML.",
    "SPEC-010": "The study has an unknown key.",
    "SPEC-011": "The study lacks a required key.",
    "SPEC-012": "A value of the study has the wrong type, such as text instead of a number.",
    "SPEC-013": "A value of the study is out of range.",
    "SPEC-020": "The study combines a protocol, a variant and a trust level that do not fit "
    "together.",
    "SPEC-021": "A parameter violates a condition of the protocol.",
    "SPEC-022": "A key has no meaning in this study because of the value of another key.",
    "MANIFEST-001": "Bytes are not a manifest in its one encoding.",
    "MANIFEST-002": "A key, a roster or an address of the manifest is not valid.",
    "PLAN-001": "The study has a release that cannot be priced.",
    "NEW-001": "A new file or directory would overwrite an existing one, or cannot be written.",
    # accounting and ledger
    "EVENT-001": "A release has an impossible price: not positive, not finite, or a delta outside "
    "[0, 1).",
    "ACCOUNT-001": "A budget or a limit is negative or not finite.",
    "ACCOUNT-002": "Releases with different units or neighbouring relations cannot be added up.",
    "ACCOUNT-003": "A release comes from a mechanism that this version cannot price.",
    "ACCOUNT-004": "The theorem of a composition does not cover this delta or these releases.",
    "SHUFFLE-001": "The local epsilon, the number of messages or the delta of a shuffled batch is "
    "out of range.",
    "LABEL-001": "A label would contradict itself, such as a total below the sum of its releases.",
    # messages and protocols
    "MSG-001": "A message is larger than the maximum size of its type.",
    "MSG-002": "Bytes are not CBOR of the wire profile: truncated, tagged, of indefinite length, "
    "too deep, or with a key twice.",
    "MSG-003": "A message is well formed but not in its one deterministic encoding, or is followed "
    "by more bytes.",
    "MSG-004": "A message's envelope is not type, version, study and body, or has a type or "
    "version that this protocol does not have.",
    "MSG-005": "A message's body does not have the fields that its type declares, or a field is "
    "out of range.",
    "MSG-006": "A message belongs to another study.",
    "MSG-007": "An outgoing message cannot be encoded: a field does not fit its declaration.",
    "MSG-008": "Bytes that were saved locally, such as a machine's state, are damaged.",
    "PRIVATE-001": "A true value that must not leave the peer was about to be copied, stored or "
    "sent.",
    "PROTO-001": "Our own code requested something from its driver that the contract forbids, such "
    "as an answer without a reservation.",
    "PROTO-002": "A peer received a question that its study does not contain and that it cannot "
    "price. It does not answer.",
    "PROTO-003": "A message arrived at the wrong time, or from a party that may not send it.",
    "PROTO-004": "An answer in the ledger is not a message of this protocol and study.",
    "PROTO-005": "A machine failed on an input because of a bug. A peer stops; an aggregator drops "
    "the input and continues.",
    "ANONML-001": "A packet answers a question that does not belong to its ticket. It is not "
    "counted.",
    "ANONML-002": "An AnonML study closed with fewer answers than it needs.",
    "ANONML-003": "A coordinator sent a question late, with other times than the study's schedule, "
    "or with different content for different people. The question is not answered.",
    "DDML-001": "An instance or an update has an impossible epoch: one that has not begun, is long "
    "past, or has no step.",
    "DDML-002": "A DDML study closed with fewer updates than it needs.",
    "SDQ-001": "A message of an SDQ study contains a script state that no answers can lead to. A "
    "database does not answer.",
    "SDQ-002": "The study does not allow this free count.",
    "SDQ-003": "A message of an SDQ study is not expected now, or does not fit its joint "
    "computation.",
    "SDQ-004": "A round of an SDQ study was abandoned: too few databases answered in time, or a "
    "joint computation failed. The budget of sent answers is spent.",
    "PFDS-001": "A holder's tables have the wrong size, or impossible counts. They are left out.",
    "PFDS-002": "A message of a PFDS study contains a script state that cannot be counted with. A "
    "holder does not answer.",
    "PFDS-003": "A message of a PFDS study is not expected now: it belongs to another round, is a "
    "repetition, or contains another model than the first.",
    "PFDS-004": "A PFDS study was abandoned because too few holders answered in time. The budget "
    "of sent answers is spent.",
    "PFDS-005": "Numbers or rows do not fit any study: the wrong number of holders, or rows that "
    "are not encoded.",
    "PFDS-101": "A holder's tree does not fit its study: its levels, attributes, split values or "
    "labels. It is left out.",
    "PFDS-102": "A holder's data does not fit its study: its size, its columns, or a value that "
    "the schema does not have. It is left out.",
    "CRYPTO-001": "A signature, a sealed box, a share of a secret or a public key does not verify. "
    "Its content is not used.",
    "TOKEN-001": "A token is not valid for its packet: it belongs to another issuer, study, slot "
    "or packet, or is malformed.",
    "TOKEN-002": "An issuer cannot sign a registration: its commitment is malformed, or its proof "
    "does not verify.",
    "TOKEN-003": "A credential does not verify, or a stored registration or credential is damaged. "
    "It is not used.",
    "SUM-001": "The members or the threshold of a secure sum are not valid.",
    "SUM-002": "A value is too large to be summed: the sum could overflow.",
    "SUM-003": "Too few members are left, or have revealed their shares, to open a secure sum.",
    "SUM-004": "An opened sum is larger than honest members can make it. It is not used.",
    "SUM-101": "A member of a secure sum sent a message of another phase, round or query, or a "
    "second one.",
    "SUM-102": "A member of a secure sum received a list of keys, dealers or survivors that it "
    "cannot accept. It reveals nothing.",
    "SUM-103": "A round of a secure sum was abandoned because too few members were left in one of "
    "its phases.",
    "JOINT-001": "A joint computation failed: a process ended or failed, or a machine was "
    "restarted. It is not resumed.",
    "JOINT-002": "A frame from another party of a joint computation cannot be decrypted, is for "
    "another party, or is not valid.",
    "JOINT-003": "Shares for a joint computation cannot be made or read: a number is too large, "
    "there are too few parties, or the bytes are malformed.",
    "REL-001": "A release would overwrite an existing file, or its directory cannot be written.",
    "REL-002": "Data must not be released: its schema was read from the data, or its parts do not "
    "belong together.",
    "REL-003": "A file of a release does not exist, is not a regular file, is too large, or is not "
    "one of the signed ones.",
    "REL-004": "A release is not signed, its signature does not verify, or its signer is not the "
    "expected one.",
    "REL-005": "The document or the study of a release is malformed.",
    "REL-006": "A file of a release differs from the signed one.",
    "REL-007": "The privacy statement of a release does not follow from its study.",
    "REL-008": "The rows or the model of a release do not fit its study.",
    "REL-009": "The quality report of a release does not follow from its rows.",
    "REL-010": "A comparison with real rows would be written into a release or over an existing "
    "file, or cannot be written.",
    "MODEL-001": "A document is not a model, or its parts do not fit together.",
    "MODEL-002": "A model cannot be exported in the requested form, or cannot be drawn. The "
    "message explains why.",
    "SIM-001": "A simulation took more steps than allowed. A machine does not terminate.",
    "SIM-002": "This version cannot simulate the study, or not in this way.",
    "SIM-003": "There are too few rows to simulate with, or too few classes among them: some rows "
    "take part, and others test the model.",
    "SIM-004": "A sweep varies a setting that cannot be varied, or gives it an invalid value.",
    "SIM-005": "Rows are not sent to a cluster because its address is neither on this machine nor "
    "protected by TLS.",
    "SIM-006": "The processes or the cluster of a simulation cannot be reached, or have ended.",
    "SIM-007": "A table to simulate with has more or fewer databases or holders than the study.",
    "FORECAST-001": "A file of public tables for a forecast is malformed, or does not have the "
    "study's columns.",
    "REPORT-001": "A file to report on cannot be read: it does not exist, is truncated or too "
    "large, or is not a run, comparison, result or audit.",
    "REPORT-002": "A file to report on is not in the form that this version reads. Another version "
    "may have written it.",
    "REPORT-003": "A report or a statement cannot be written, or would overwrite one of its "
    "sources.",
    # the ledger
    "BUDGET-001": "The participant's limits do not bound a release, or cannot be counted together "
    "with it.",
    "BUDGET-002": "A release would exceed the participant's limit on epsilon.",
    "BUDGET-003": "A release would exceed the participant's limit on the number of releases.",
    "BUDGET-004": "A question of a study was reserved before with another price, data source or "
    "recipient.",
    "BUDGET-005": "A question was voided and stays unanswered: its answer would be a second draw.",
    "BUDGET-006": "A release would exceed the participant's limit on delta, which limits how often "
    "the loss may exceed epsilon.",
    "LEDGER-001": "The ledger file cannot be opened, read or written.",
    "LEDGER-002": "There is no space to write to the ledger.",
    "LEDGER-003": "Another process kept the ledger locked for too long.",
    "LEDGER-004": "A file is not a ledger.",
    "LEDGER-005": "A newer version of shoal wrote the ledger.",
    "LEDGER-006": "A ledger is damaged or was altered: a record differs from the one that was "
    "written.",
    "LEDGER-007": "A ledger lacks records that it once had: it was replaced by an older copy, or "
    "rewritten.",
    "LEDGER-008": "The states of a release in the ledger are in a forbidden order.",
    "LEDGER-009": "A limit or a text cannot be written to the ledger.",
    "LEDGER-010": "A ledger is needed but does not exist yet.",
    "LEDGER-011": "A child process uses a ledger that was opened before the fork.",
    "LEDGER-012": "The clock is far ahead of the last record of the ledger.",
    # the coordinator
    "STORE-001": "The store of a coordinator cannot be opened, reached, read or written.",
    "STORE-002": "A store does not have the model instances of a study, or has others than the "
    "study declares.",
    "STORE-003": "A file is not a store of a coordinator, or a newer version of shoal wrote it.",
    # coordinator and participant over HTTP
    "AUTH-001": "A request that only an enrolled participant or the analyst may make has no "
    "signature or key.",
    "AUTH-002": "The signature or key of a request is not valid for it.",
    "AUTH-003": "A signed request is too old, or its sender's clock is wrong.",
    "AUTH-004": "A manifest is not signed by its coordinator, or the coordinator has another key "
    "than before.",
    "AUTH-005": "A signed request was repeated.",
    "ENROL-001": "A participant cannot enrol: the study needs an invitation or a place on its "
    "roster, is full, or has ended.",
    "ENROL-002": "A participant enrols a second time with another ticket or commitment, or with "
    "one of another participant.",
    "HOST-001": "The coordinator does not have this study, or this part of it.",
    "HOST-002": "The study has ended, or has no result yet.",
    "HOST-003": "A study cannot be served: its protocol and trust level need a roster, or a part "
    "that is not available.",
    "HOST-004": "The coordinator cannot do this now: it is starting or stopping, or cannot reach "
    "its store.",
    "HOST-005": "A submission was made before with other bytes.",
    "HOST-006": "A request has the wrong method, content type or query for its route.",
    "HOST-007": "The coordinator failed on a request because of a bug. The request may be "
    "repeated.",
    "SERVE-001": "A coordinator would listen beyond this machine without TLS, or its address is "
    "not available.",
    "SERVE-002": "A certificate and its key cannot be read, or do not belong together.",
    "SERVE-003": "The worker processes of a coordinator end immediately after they start.",
    "SERVE-004": "A roster cannot be read, or the study does not use one.",
    "SERVE-005": "A study is still a draft: values that were read from rows are not replaced, or "
    "its purpose is not stated.",
    "CONSENT-001": "The participant has not agreed to a study, or the study has changed since.",
    "NET-001": "The coordinator cannot be reached, or closes the connection too early.",
    "NET-002": "The answer of the coordinator is not valid.",
    "NET-003": "The coordinator's certificate cannot be trusted.",
    "NET-004": "Tor cannot be reached, or cannot reach the coordinator.",
    "NET-005": "A relay serves another study, another coordinator, or another gateway key than the "
    "participant agreed to, or is an address of the participant's own computer.",
    "RELAY-001": "A relay rejected a packet: it has another size than the study's packets, or "
    "belongs to a study that the relay does not serve.",
    "RELAY-002": "The spool of a relay cannot be opened, read or written.",
}
"""Meaning of each code, in one or two sentences for the reference page."""


class ShoalError(Exception):
    """Base class of every error that shoal raises deliberately; any other exception is a bug.

    Parameters
    ----------
    code
        A key of `CODES`.
    what
        What is wrong, with the offending value.
    why, fix
        The cause, and what to do about it.
    """

    exit_code: ClassVar[int] = 1

    def __init__(
        self, code: str, what: str, *, why: str | None = None, fix: str | None = None
    ) -> None:
        if code not in CODES:
            raise KeyError(f"error code {code} is not in the table of codes")
        self.code = code
        self.what = what
        self.why = why
        self.fix = fix
        super().__init__(code, what)

    def __str__(self) -> str:
        lines = [f"{self.code}  {self.what}"]
        lines += [f"  why       {self.why}"] if self.why else []
        lines += [f"  fix       {self.fix}"] if self.fix else []
        return "\n".join(lines)

    def to_dict(self) -> dict[str, str]:
        """Return the error as plain data, for ``--json`` and for problem documents."""
        parts = {"code": self.code, "what": self.what, "why": self.why, "fix": self.fix}
        return {name: text for name, text in parts.items() if text is not None}


class UsageError(ShoalError):
    """A call or a command line that is not valid."""

    exit_code = 2


class MechanismError(UsageError):
    """A parameter or input of a mechanism outside the conditions of its theorem."""


class SpecError(ShoalError):
    """A study file, manifest, schema or table that is not valid."""

    exit_code = 3


class BudgetError(ShoalError):
    """A release that the ledger refuses."""

    exit_code = 4


class ConsentError(ShoalError):
    """A study, or a version of it, that the participant has not agreed to."""

    exit_code = 5


class TransportError(ShoalError):
    """A party that could not be reached."""

    exit_code = 6


class LocalProtocolError(ShoalError):
    """A violation of the protocol by our own code."""

    exit_code = 7


class RemoteProtocolError(ShoalError):
    """A violation of the protocol by another party."""

    exit_code = 7


class StoreError(ShoalError):
    """A file or a database that cannot be read or written."""


class IntegrityError(StoreError):
    """A record that differs from the one that was written."""


def require_extra(extra: str, *modules: str, purpose: str) -> None:
    """Raise ``USAGE-002`` unless the modules that an extra of shoal installs can be found.

    The modules are not imported.

    Parameters
    ----------
    modules
        Names of top-level modules.
    purpose
        The subject of the sentence: what needs them.

    Examples
    --------
    >>> require_extra("redis", "no_such_module", purpose="A Redis store")
    Traceback (most recent call last):
    shoal.errors.UsageError: USAGE-002  A Redis store needs no_such_module, which is not installed.
      fix       ...pip install -e '...[redis]'
    """
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise UsageError(
            "USAGE-002",
            f"{purpose} needs {', '.join(missing)}, which {verb} not installed.",
            fix=format_install_command(extra),
        )


def format_install_command(*extras: str) -> str:
    """Return the command that installs shoal with some extras, from a clone.

    No package index has a release of shoal, and its name is not registered: a command with the bare
    name could install the package of a stranger. The command names this interpreter and the clone
    that shoal was installed from; if there is none, it is for the directory of a clone.
    """
    clone = _find_clone()
    pip = "pip" if clone is None else f"{shlex.quote(sys.executable)} -m pip"
    target = f"{clone or '.'}[{','.join(extras)}]" if extras else str(clone or ".")
    return f"{pip} install -e {shlex.quote(target)}"


def format_upgrade_command() -> str:
    """Return the command that brings a clone and the installed shoal to the newest version."""
    clone = _find_clone()
    pull = "git pull" if clone is None else f"git -C {shlex.quote(str(clone))} pull"
    return f"{pull} && {format_install_command()}"


def _find_clone() -> Path | None:
    """Return the directory that shoal was installed from as editable; None if there is none."""
    # Rarely needed, and importlib.metadata would slow down the start of every command.
    import importlib.metadata
    import json
    from urllib.parse import unquote, urlsplit

    try:
        record = importlib.metadata.distribution("shoal").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        record = None
    origin = json.loads(record or "{}")
    if not origin.get("dir_info", {}).get("editable"):
        return None
    clone = Path(unquote(urlsplit(origin["url"]).path))
    return clone if (clone / "pyproject.toml").is_file() else None
