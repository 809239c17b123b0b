"""Store interface: records and operations.

The coordinator uses it through `SqlStore`; `tests/contract/test_store.py` runs one suite against
every store. A store contains, for each study: the manifest, enrolments, issued tickets, the
aggregator's state and alarms, accepted inputs that are not yet applied to the state, names of
submissions, messages to participants, and totals. For each scope of anonymous credentials (one
study, or all studies of an epoch) it contains the registrations.

A change must keep these rules:

- Every call is one transaction, durable when it returns. Several processes may use one store.
- Each accepted input is applied to the state once: `save` writes the new state and deletes the
  applied inputs in one transaction.
- One process at a time steps a study, under a lease. The lease has a term that grows whenever it
  changes hands, and `save` under an old term does nothing. A process that slept past the end of
  its lease cannot write, even if clocks are wrong.
- It stores as little as possible. No row has a time or number that shows when it arrived, except
  messages, which the coordinator wrote. An enrolment is not linked to a ticket, nor a ticket to
  submissions under it: these are sets of digests. A registration shows who is a member, and
  nothing about submissions. Inputs are deleted, and overwritten if the database can, when they are
  applied.
- Time is an argument: milliseconds since 1970.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self

from shoal.transport.api import QueuedMessage, Status

SubmissionOutcome = Literal["accepted", "repeated", "conflict", "over", "replayed", "unissued"]
"""Outcome of a submission: it is stored; the same bytes were stored before; different bytes are
stored under its name; the study has ended; its nonce was used; its ticket was not issued.
"""


LARGEST_NUMBER = (1 << 63) - 1
"""Largest number of the databases; a participant may send a larger one."""


@dataclass(frozen=True, slots=True)
class CoordinatorSecrets:
    """SHA-256 of the analyst's key, and the seed of the key that signs manifests."""

    analyst_digest: bytes
    signing_seed: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class StudyRecord:
    """A study as the store has it.

    Parameters
    ----------
    digest
        Hexadecimal digits.
    opened, phase_timeout
        Time of publication, and how long a phase or step waits for answers: milliseconds.
    by_invitation
        Whether an invitation is needed to enrol.
    seats
        Names for participants in the order of enrolment; None if names have no meaning.
    queries
        The analyst's free counts, as the protocol encodes them; may be empty.
    result, reason
        The model as JSON, when there is one; why the study ended without one.
    scope
        The scope of the credentials that are valid, if packets are admitted by tokens.
    """

    digest: str
    manifest: bytes
    opened: int
    phase_timeout: int
    by_invitation: bool = False
    seats: tuple[str, ...] | None = None
    queries: bytes = b""
    status: Status = "open"
    result: bytes | None = None
    reason: str | None = None
    scope: bytes | None = None


@dataclass(frozen=True, slots=True)
class NewEnrolment:
    """A participant who enrols.

    Parameters
    ----------
    key
        The participant's public key.
    name
        A name of the roster; None for the next free seat, or, if there are no seats, for a name
        made from the key.
    ticket
        SHA-256 of the ticket that the participant has drawn; None if the study has no tickets.
    invitation
        SHA-256 of the invitation code, which can be used once.
    nonce, expires
        Nonce of the signed request, stored until ``expires``, also if the enrolment is rejected: a
        replay must neither undo a later `Store.leave` nor cost the same work again.
    answers
        Number of answers that can arrive under the ticket, by phase. They are added to the
        expected answers, and the study wakes.
    """

    key: bytes
    name: str | None = None
    ticket: bytes | None = None
    invitation: bytes | None = None
    nonce: bytes | None = None
    expires: int = 0
    answers: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class NewRegistration:
    """A participant who registers for a credential; see `NewEnrolment` for the other fields.

    Parameters
    ----------
    commitment, issued
        SHA-256 of the commitment, and the issuer's signature for it: stored unless the key has
        registered before. `Store.check_registration` needs no signature.
    capacity
        Most members of the scope.
    """

    key: bytes
    commitment: bytes
    issued: bytes = b""
    invitation: bytes | None = None
    nonce: bytes | None = None
    expires: int = 0
    capacity: int = LARGEST_NUMBER


@dataclass(frozen=True, slots=True)
class Submission:
    """A message or packet for the aggregator.

    Parameters
    ----------
    sender
        The name of an enrolled participant; empty if it was sent anonymously.
    name, digest
        SHA-256 of the submission's name (sender, type and name; type and name if anonymous), and of
        the payload, with a token also of its pseudonym; None for a message that may be sent any
        number of times.
    nonce
        Nonce of a signed request; None for an anonymous one.
    ticket
        SHA-256 of the ticket that it needs; None if it needs none.
    """

    sender: str
    payload: bytes
    name: bytes | None = None
    digest: bytes | None = None
    nonce: bytes | None = None
    ticket: bytes | None = None


@dataclass(frozen=True, slots=True)
class SubmissionName:
    """The name of a submission that is not stored, with digests of its bytes and its ticket."""

    name: bytes
    digest: bytes
    ticket: bytes | None = None


@dataclass(frozen=True, slots=True)
class PendingInput:
    """An accepted input that is not yet applied; the number is only its position in the queue."""

    number: int
    sender: str
    payload: bytes
    name: bytes | None


@dataclass(frozen=True, slots=True)
class StudySnapshot:
    """Everything that the next steps of a study need; ``state`` is None before the first step."""

    state: bytes | None
    inputs: tuple[PendingInput, ...]
    alarms: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StudyOutcome:
    """How a study ended: done with a result, or failed or closed with a reason."""

    status: Status
    result: bytes | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """Effects of one or more steps, which are saved together.

    Parameters
    ----------
    input_numbers
        Numbers of inputs that were applied or rejected; they are deleted.
    freed_names
        Names of rejected submissions, which can be used again.
    messages
        Recipient, or None for everyone, and bytes.
    alarms, fired_alarms
        New times to wake the study at, and times that have passed.
    rejection_counts
        Number of rejected inputs by error code.
    outcome
        How the study ended; None if it is open.
    """

    state: bytes
    input_numbers: tuple[int, ...] = ()
    freed_names: tuple[bytes, ...] = ()
    messages: tuple[tuple[str | None, bytes], ...] = ()
    alarms: tuple[int, ...] = ()
    fired_alarms: tuple[int, ...] = ()
    rejection_counts: Mapping[str, int] = field(default_factory=dict)
    outcome: StudyOutcome | None = None


@dataclass(frozen=True, slots=True)
class StudyTotals:
    """Counts of a study.

    Parameters
    ----------
    enrolled
        Enrolled participants, or members of the study's scope.
    refused
        Rejected requests by error code.
    """

    enrolled: int
    accepted: int
    waiting: int
    refused: Mapping[str, int]


def do_not_wait(seconds: float) -> bool:  # noqa: ARG001
    """Continue immediately."""
    return False


class Store(ABC):
    """The studies of one coordinator, by the digest of the manifest in hexadecimal."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Close all connections; nothing is lost if this is never called."""

    @abstractmethod
    def ping(self) -> None:
        """Raise `StoreError` if the store cannot be used at present."""

    @abstractmethod
    def keep_secrets(self, offered: CoordinatorSecrets) -> CoordinatorSecrets:
        """Return the stored secrets; store the offered ones if there are none."""

    @abstractmethod
    def publish(self, record: StudyRecord, invitations: Sequence[bytes] = ()) -> bool:
        """Add a study with digests of invitations; return False if the store has it already."""

    @abstractmethod
    def list_studies(self) -> tuple[StudyRecord, ...]:
        """Return all studies, in the order of their publication."""

    @abstractmethod
    def find_study(self, study: str) -> StudyRecord | None:
        """Return a study; None if it is unknown."""

    @abstractmethod
    def enrol(self, study: str, enrolment: NewEnrolment) -> str:
        """Enrol a key in an open study and return its name; enrolling again changes nothing.

        Raises
        ------
        RemoteProtocolError
            ``ENROL-001``: the invitation does not exist or was used, there is no free seat, or the
            study has ended. ``ENROL-002``: the participant has enrolled with another ticket, or
            somebody else has this one. ``AUTH-005``: the nonce was used.
        """

    @abstractmethod
    def check_registration(self, study: str, registration: NewRegistration) -> bytes | None:
        """Return the credential of a key in a study's scope; None if the key may register now.

        It changes nothing, and is called before a credential is issued.

        Raises
        ------
        RemoteProtocolError
            The errors of `register`.
        """

    @abstractmethod
    def register(self, study: str, registration: NewRegistration) -> tuple[str, bytes]:
        """Register a key in an open study's scope, enrol it, return its name and credential.

        Registering again changes nothing and returns the same, in every study of the scope, and
        needs no second invitation. A registration is never deleted, not even by `leave`: otherwise
        one person could have two credentials. An invitation to any study of the scope is valid.

        Raises
        ------
        RemoteProtocolError
            ``ENROL-001``: the invitation does not exist or was used, the scope is full, or the
            study has ended. ``ENROL-002``: the key has registered with another commitment, or
            another key with this one. ``AUTH-005``: the nonce was used.
        """

    @abstractmethod
    def count_members(self, study: str) -> int:
        """Return how many keys are registered in a study's scope; it never falls."""

    @abstractmethod
    def list_members(
        self, study: str, after: bytes = b"", most: int = LARGEST_NUMBER
    ) -> tuple[bytes, ...]:
        """Return up to ``most`` keys registered in a study's scope after ``after``, sorted.

        The list is empty if the study has no scope.
        """

    @abstractmethod
    def list_submissions(
        self, study: str, after: bytes = b"", most: int = LARGEST_NUMBER
    ) -> tuple[bytes, ...]:
        """Return up to ``most`` names of stored submissions after ``after``, sorted.

        Names of a study with a scope remain after its end.
        """

    @abstractmethod
    def list_frozen_submissions(
        self, study: str, number: int, after: bytes, most: int
    ) -> tuple[bytes, ...]:
        """Return the names that were stored when list ``number`` was first requested.

        A request for a list with a larger number freezes this list too.
        """

    @abstractmethod
    def count_expected(self, study: str) -> tuple[int, Mapping[int, int]]:
        """Return the number of participants, and of answers under their tickets by phase.

        Participants are those who have enrolled, or the members of the study's scope.
        """

    @abstractmethod
    def find_name(self, study: str, key: bytes) -> str | None:
        """Return the name of an enrolled key; None if it has not enrolled or has left."""

    @abstractmethod
    def leave(self, study: str, key: bytes, nonce: bytes, expires: int) -> bool:
        """Delete an enrolment; return False if the nonce was used.

        The seat stays taken, and submissions stay.
        """

    @abstractmethod
    def use_names(
        self, study: str, names: Sequence[SubmissionName]
    ) -> tuple[SubmissionOutcome, ...]:
        """Store names with digests in one transaction; return the outcome of each.

        For DDML's updates, which are not stored.
        """

    @abstractmethod
    def accept(
        self, study: str, submissions: Sequence[Submission], expires: int
    ) -> tuple[SubmissionOutcome, ...]:
        """Store submissions in one transaction; return the outcome of each.

        Nonces are stored until they expire.
        """

    @abstractmethod
    def count_rejections(self, study: str, code: str, n: int = 1) -> None:
        """Add to the number of rejections with a code."""

    @abstractmethod
    def list_due(self, now: int) -> tuple[str, ...]:
        """Return open studies that have not begun, have inputs, or have an alarm that is due."""

    @abstractmethod
    def lease(self, study: str, holder: str, now: int, until: int) -> int | None:
        """Take the lease of a study; return its term, or None if another holder has it."""

    @abstractmethod
    def renew(self, study: str, holder: str, term: int, until: int) -> bool:
        """Extend a lease; return False if it was released or another holder has it."""

    @abstractmethod
    def release(self, study: str, holder: str) -> None:
        """Release a lease, so that others need not wait until it expires."""

    @abstractmethod
    def load(self, study: str, now: int, most: int) -> StudySnapshot:
        """Return the state, up to ``most`` inputs in order of arrival, and the alarms until now."""

    @abstractmethod
    def save(self, study: str, term: int, result: StepResult) -> bool:
        """Save the effects of steps.

        Return False and change nothing if the lease has another term or the study has ended.
        """

    @abstractmethod
    def end(self, study: str, outcome: StudyOutcome) -> bool:
        """End an open study immediately and delete its inputs; return False if it had ended."""

    @abstractmethod
    def find_last_number(self, study: str) -> int:
        """Return the number of the last message, to a participant or to everyone; 0 for none."""

    @abstractmethod
    def list_messages(
        self, study: str, name: str | None, after: int, most_bytes: int
    ) -> tuple[QueuedMessage, ...]:
        """Return messages to everyone and to a participant with larger numbers, in order.

        At least one is returned if there is any, then up to ``most_bytes``.
        """

    @abstractmethod
    def acknowledge(self, study: str, name: str, upto: int, nonce: bytes, expires: int) -> bool:
        """Delete a participant's own messages up to a number.

        Return False and delete nothing if the nonce of the request was used.
        """

    @abstractmethod
    def count_totals(self, study: str) -> StudyTotals:
        """Return the counts of a study; they contain nothing about a single participant."""

    @abstractmethod
    def tidy(self, now: int, wait: Callable[[float], bool] = do_not_wait) -> None:
        """Delete expired nonces, and erase deleted data from the disk if the database can.

        Rows of participants are rewritten in the order of their digests, in many short
        transactions.

        Parameters
        ----------
        wait
            Called between two transactions with the seconds that the last one took. It may sleep,
            so that other writers get their turn. If it returns True, the rewrite ends early, and
            the next call begins it again.
        """
