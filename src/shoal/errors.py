"""The exception tree and the table of error codes.

Every error that a user can meet has a stable code, and a message of up to three parts: what is wrong (with the value),
why, and how to fix it. ``docs/reference/errors.md`` is written from the table below by ``make docs``.
Private values, tokens and shares never enter a message.
"""

from __future__ import annotations

from typing import ClassVar

CODES: dict[str, str] = {
    # usage
    "USAGE-001": "A command was given an argument that it does not take, or not in a form that it can read.",
    "USAGE-002": "A part of shoal is needed that is not installed. The message names the extra to install.",
    "USAGE-003": "A command was interrupted, by its user or by the system. What it had written is whole.",
    "HELLO-001": "A process that the demonstration has started ended as it should not. What it said is in the message.",
    # randomness and mechanisms
    "ENTROPY-001": "Something real would have been released with seeded randomness. Seeded randomness is for simulation only.",
    "MECH-001": "A mechanism was asked for with a parameter outside the conditions of its theorem.",
    "MECH-002": "A value to be randomised is outside the mechanism's domain.",
    "MECH-003": "A report does not have the form that the mechanism produces.",
    # schema and data
    "SCHEMA-001": "A feature has no usable name, a name is used twice, or there is nothing to learn from or to predict.",
    "SCHEMA-002": "A numeric feature's public range is not two rising, finite numbers.",
    "SCHEMA-003": "A numeric feature's public cut points do not cut its range.",
    "SCHEMA-004": "A categorical feature's values are not two or more different texts.",
    "SCHEMA-005": "A categorical feature's public groups do not divide its values among them.",
    "SCHEMA-006": "A text feature's number of buckets or length of n-grams cannot be used.",
    "DATA-001": "The data lacks a column that the study asks about.",
    "DATA-002": "A number lies outside the public range that the study declares.",
    "DATA-003": "A value is not among those that the study declares.",
    "DATA-004": "A cell of a numeric column cannot be read as a finite number.",
    "DATA-005": "A value is missing where the study says that none may be.",
    "DATA-006": "A participant's data cannot be read: no such file, not in the format that its name says, or too large.",
    "DATA-007": "A table is not well formed: a row of another length, a column without a name of its own, text that is not UTF-8.",
    # data fetching
    "DATA-101": "The host of a public dataset cannot be reached.",
    "DATA-102": "The host of a public dataset answers, but not with the file.",
    "DATA-103": "The download of a public dataset broke off before its end.",
    "DATA-104": "A download, or a file inside it, is far larger than the dataset is.",
    "DATA-105": "A download is not the archive, or does not hold the table, that the dataset is published as.",
    "DATA-106": "A fetched dataset differs from the one that tests and benchmarks are written for.",
    "DATA-107": "A fetched dataset cannot be written to its directory.",
    # study, manifest and plan
    "SPEC-001": "The study file cannot be read: it is not there, too large, or not UTF-8 text.",
    "SPEC-002": "The study file is not TOML.",
    "SPEC-010": "The study has a key that does not exist.",
    "SPEC-011": "The study lacks a key that it needs.",
    "SPEC-012": "A value of the study is of the wrong kind, such as text where a number is due.",
    "SPEC-013": "A value of the study is outside what is allowed.",
    "SPEC-020": "The study combines a protocol, a variant and a trust level that do not go together.",
    "SPEC-021": "A parameter breaks a condition of the protocol.",
    "SPEC-022": "A key has no meaning in this study, because of what another key says.",
    "MANIFEST-001": "Bytes that should be a manifest are not one, or not in the one form that a manifest has.",
    "MANIFEST-002": "A key, a roster or an address of the manifest cannot be used.",
    "PLAN-001": "The study asks for something that cannot be priced.",
    "NEW-001": "A new file or directory would overwrite what is already there, or cannot be written.",
    # accounting and ledger
    "EVENT-001": "A release carries a price that cannot be right: not positive, not finite, or a delta outside [0, 1).",
    "ACCOUNT-001": "A figure that should be a budget or a limit is negative or not finite.",
    "ACCOUNT-002": "Releases that protect different units, or between different neighbours, cannot be added up.",
    "ACCOUNT-003": "A release comes from a mechanism that this version cannot price.",
    "ACCOUNT-004": "A composition was asked for with a delta, or for releases, that its theorem does not cover.",
    "SHUFFLE-001": "Amplification by shuffling was asked for with a local epsilon, a number of messages or a delta that makes no sense.",
    "LABEL-001": "A label was to be printed that would contradict itself, such as a total below the sum of its releases.",
    # messages and protocols
    "MSG-001": "A message is larger than its kind may be.",
    "MSG-002": "Bytes are not CBOR of the wire profile: cut short, tagged, of indefinite length, too deep, or with a key twice.",
    "MSG-003": "A message is well formed but not in its one deterministic encoding, or is followed by more bytes.",
    "MSG-004": "A message's envelope is not type, version, study and body, or names a type or version that this protocol does not have.",
    "MSG-005": "A message's body does not have the fields that its type declares, or a field is out of range.",
    "MSG-006": "A message belongs to another study than the one agreed to.",
    "MSG-007": "A message that we made ourselves cannot be sent: a field does not fit its declaration.",
    "MSG-008": "Bytes that we saved ourselves, such as a machine's state, are not what was saved.",
    "PRIVATE-001": "A true value that must not leave the peer was about to be copied, stored or sent.",
    "PROTO-001": "Our own code asked its driver for something that the contract forbids, such as an answer without a reservation.",
    "PROTO-002": "A peer was asked a question that its study does not contain, and so cannot price. It does not answer.",
    "PROTO-003": "A message came at the wrong time, or from a party that may not send it.",
    "PROTO-004": "An answer that the ledger holds is not a message of this protocol and study.",
    "PROTO-005": "A machine failed on an input by a fault of its own code. A peer gives up; an aggregator drops the input and goes on.",
    "ANONML-001": "A packet answers a question that does not belong to its ticket. It is not counted.",
    "ANONML-002": "A study of AnonML closed with fewer answers than it needs to learn from.",
    "DDML-001": "An instance or an update is of an epoch that cannot be: one that has not begun, is long past, or has no step.",
    "DDML-002": "A study of DDML closed with fewer updates than it needs to learn from.",
    "SDQ-001": "A course of an SDQ study was named that no answers can lead to. A database does not answer.",
    "SDQ-002": "A free count was asked for that the study does not allow.",
    "SDQ-003": "A message of an SDQ study is not due, or does not fit the joint computation that it belongs to.",
    "SDQ-004": "A round of an SDQ study was given up: too few answered in time, or a joint computation broke off. What was sent is spent.",
    "PFDS-001": "A holder's tables have another size than they must have, or counts out of all proportion. They are left out.",
    "PFDS-002": "A course of a PFDS study was named that one cannot count with. A holder does not answer.",
    "PFDS-003": "A message of a PFDS study is not due: of another round than its course, a second one, or another model than the first.",
    "PFDS-004": "A PFDS study was given up, because too few holders have answered in time. What was sent is spent.",
    "PFDS-005": "Figures or rows were put together that no study has: another number of holders, or rows that were not encoded.",
    "PFDS-101": "A holder's tree does not fit its study: its levels, attributes, split values or labels. It is left out.",
    "PFDS-102": "A holder's data does not fit its study: its size, its columns, or a value that the schema does not have. It is left out.",
    "CRYPTO-001": "A signature, a sealed box, a share of a secret or a public key does not verify. What came with it is not used.",
    "TOKEN-001": "A token is not valid for what it came with: not of this issuer, study, slot or packet, or not a token at all.",
    "TOKEN-002": "An issuer cannot sign a registration: its commitment is not one, or its proof does not verify.",
    "TOKEN-003": "An issuer has answered a registration with a credential that does not verify. It is not used.",
    "SUM-001": "A secure sum was asked for among members, or with a threshold, that it cannot have.",
    "SUM-002": "A value is too large to be summed: the sum could overflow.",
    "SUM-003": "Too few members are left, or have revealed their shares, to open a secure sum.",
    "SUM-004": "An opened sum is larger than honest members can have made it. It is not used.",
    "SUM-101": "A member of a secure sum sends what is not due: of another phase, round or query, or a second time.",
    "SUM-102": "A member of a secure sum is shown a list of keys, dealers or survivors that it cannot stand by. It reveals nothing.",
    "SUM-103": "A round of a secure sum was given up, because too few members were left in one of its phases.",
    "JOINT-001": "A joint computation broke off: a process died or failed, or a machine went down meanwhile. It is not resumed.",
    "JOINT-002": "What another party of a joint computation sent does not open, is not for this party, or cannot be used.",
    "JOINT-003": "Shares for a joint computation cannot be dealt or read: a number too large, too few parties, or other bytes.",
    "REL-001": "A release would overwrite what is already there, or its directory cannot be written.",
    "REL-002": "Something was to be released that must not be: with a schema read from the data, or of parts that do not belong together.",
    "REL-003": "A file of a release is not there, is not a plain file, is larger than it may be, or is none of those that are signed.",
    "REL-004": "A release is not signed, its signature does not verify, or its signer is not the one expected.",
    "REL-005": "The document or the study of a release is not in the form that it must have.",
    "REL-006": "A file of a release is not the one that was signed.",
    "REL-007": "The privacy statement of a release is not the one that follows from its study.",
    "REL-008": "The rows or the model of a release do not fit its study.",
    "REL-009": "The quality report of a release does not follow from its rows.",
    "REL-010": "A comparison with real rows would be written into a release or over what is already there, or cannot be written.",
    "MODEL-001": "A document that should be a model is not one, or does not fit together.",
    "MODEL-002": "A model cannot be exported in the form that was asked for, or has no picture. The message says why.",
    "SIM-001": "A simulation took more steps than it was allowed. Some machine does not come to an end.",
    "SIM-002": "A study was to be simulated that this version does not simulate, or not in this way.",
    "SIM-003": "There are too few rows to simulate with, or too few classes among them: some are asked, and others test what was learned.",
    "SIM-004": "A sweep varies what cannot be varied, or gives it values that it cannot have.",
    "SIM-005": "A cluster is not given rows, because its address is neither on this machine nor protected by TLS.",
    "SIM-006": "The processes or the cluster that simulate cannot be reached, or have gone.",
    "SIM-007": "A table to simulate with names more or fewer databases or holders than the study has.",
    "FORECAST-001": "A file of public tables, from which a forecast is to be made, is not one, or not one of the study's columns.",
    "REPORT-001": "A file to report on cannot be read: not there, cut short, too large, or no run, comparison, result or audit.",
    "REPORT-002": "A file to report on is not in the form that this version reads. Another version may have written it.",
    "REPORT-003": "A report or a statement cannot be written, or would be written over what it is made of.",
    # the ledger
    "BUDGET-001": "The participant's limits do not bound a release, or cannot be counted together with it.",
    "BUDGET-002": "A release would go over a limit on epsilon that the participant has set.",
    "BUDGET-003": "A release would go over a limit on the number of releases that the participant has set.",
    "BUDGET-004": "A question of a study was reserved before with another price, data source or recipient.",
    "BUDGET-005": "A question was voided; its answer would be a second draw, and it stays unanswered.",
    "BUDGET-006": "A release would go over a limit on delta, the chance that nothing is promised.",
    "LEDGER-001": "The ledger file cannot be opened, read or written.",
    "LEDGER-002": "There is no room to write to the ledger.",
    "LEDGER-003": "Another process kept the ledger locked for too long.",
    "LEDGER-004": "A file is not a ledger.",
    "LEDGER-005": "A ledger was written by a newer version of shoal.",
    "LEDGER-006": "A ledger is damaged or was altered: a record is not what was written.",
    "LEDGER-007": "A ledger lacks records that it once had: an older copy was put in its place, or it was rewritten.",
    "LEDGER-008": "A release was moved through the ledger in a forbidden order.",
    "LEDGER-009": "A limit or a text cannot be written to the ledger.",
    "LEDGER-010": "There is no ledger yet where one is needed.",
    "LEDGER-011": "A ledger that was opened before a fork is used after it, in the child.",
    # the coordinator
    "STORE-001": "The store of a coordinator cannot be opened, reached, read or written.",
    "STORE-002": "A store does not have the model instances of a study, or has others than the study declares.",
    "STORE-003": "A file is not a store of a coordinator, or was written by a newer version of shoal.",
    # coordinator and participant over HTTP
    "AUTH-001": "A request that only an enrolled participant or the analyst may make carries no signature or key.",
    "AUTH-002": "A request's signature or key is not the right one for it.",
    "AUTH-003": "A signed request is too old, or its sender's clock is wrong.",
    "AUTH-004": "A manifest is not signed by the coordinator that publishes it, or the coordinator has another key than before.",
    "AUTH-005": "A signed request came a second time.",
    "ENROL-001": "A participant cannot enrol: the study needs an invitation or a place on its roster, is full, or has ended.",
    "ENROL-002": "A participant enrols a second time, with another ticket or commitment than the first time.",
    "HOST-001": "The coordinator does not have this study, or this part of it.",
    "HOST-002": "The study has ended, or has no result yet.",
    "HOST-003": "A study cannot be served as it is: its protocol and trust need a roster, or something that is not there yet.",
    "HOST-004": "The coordinator cannot do this now: it starts, stops, or cannot reach its store.",
    "HOST-005": "A submission was made before with other bytes.",
    "HOST-006": "A request is not one that its route takes: of another method or content type, or with another query.",
    "HOST-007": "The coordinator failed on a request by a fault of its own code. The request may be made again.",
    "SERVE-001": "A coordinator would listen beyond this machine without TLS, or on an address that it cannot have.",
    "SERVE-002": "A certificate and its key cannot be read, or do not belong together.",
    "SERVE-003": "The worker processes of a coordinator end as soon as they are started.",
    "SERVE-004": "A roster cannot be read, or is given to a study that has none.",
    "SERVE-005": "A study is a draft still: what was read from rows is not replaced, or nobody has written what it is for.",
    "CONSENT-001": "A study was not agreed to, or has changed since.",
    "NET-001": "The coordinator cannot be reached, or breaks off.",
    "NET-002": "The coordinator answers with something that is no answer.",
    "NET-003": "The coordinator's certificate cannot be trusted.",
    "NET-004": "Tor cannot be reached, or cannot reach the coordinator.",
    "NET-005": "A relay serves another study than the one agreed to, or another coordinator, or has another gateway's key.",
    "RELAY-001": "A relay does not take a packet: it is of another size than the study's packets, or of a study that it does not serve.",
    "RELAY-002": "The spool of a relay cannot be opened, read or written.",
}
"""Code -> what it means, in one or two sentences for the reference page."""


class ShoalError(Exception):
    """Base of every error that shoal raises on purpose; anything else that escapes is a bug.

    Parameters
    ----------
    code
        A key of `CODES`.
    what
        What is wrong, with the offending value.
    why, fix
        Where it comes from, and what to do about it.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, code: str, what: str, *, why: str | None = None, fix: str | None = None) -> None:
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
        """The error as plain data, for ``--json`` and for problem documents."""
        parts = {"code": self.code, "what": self.what, "why": self.why, "fix": self.fix}
        return {name: text for name, text in parts.items() if text is not None}


class UsageError(ShoalError):
    """A call or a command line that cannot be understood."""

    exit_code = 2


class MechanismError(UsageError):
    """A mechanism asked for, or fed, outside the conditions of its theorem."""


class SpecError(ShoalError):
    """The study file, the manifest, the schema or the data does not fit."""

    exit_code = 3


class BudgetError(ShoalError):
    """The ledger refuses."""

    exit_code = 4


class ConsentError(ShoalError):
    """The participant has not agreed, or not to this."""

    exit_code = 5


class TransportError(ShoalError):
    """The other side could not be reached."""

    exit_code = 6


class LocalProtocolError(ShoalError):
    """We broke the rules of the protocol."""

    exit_code = 7


class RemoteProtocolError(ShoalError):
    """The other side broke the rules of the protocol."""

    exit_code = 7


class StoreError(ShoalError):
    """A file or a database cannot be read or written."""


class IntegrityError(StoreError):
    """A record is not what was written."""
