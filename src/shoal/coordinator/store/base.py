"""What a coordinator's store owes, whichever it is; one suite of tests runs against all of them.

A store keeps, for each study: its manifest, who is enrolled, which tickets were issued, the aggregator's state and alarms, what was
accepted and is not folded into the state yet, the names of submissions, letters for participants, and totals. And for each scope of
anonymous credentials, which one study has or all of an epoch, who has registered for one.

- Every call is one transaction, durable when it returns. Any number of processes may use one store.
- What is accepted is folded into the state once: `save` writes the new state and deletes what went into it together.
- A study is stepped by one process at a time, under a lease. The lease has a term that grows whenever it changes hands; `save` under an
  old term does nothing. So a process that slept through its lease cannot write, whatever any clock says.
- It keeps as little as it can. No row has a time or a number that says when it came, but for letters, which the coordinator wrote. An
  enrolment is not linked to a ticket, nor a ticket to what was submitted under it: these are sets, kept by digests alone. A registration
  says who is a member, and nothing that is submitted by means of it. What a participant submitted is deleted, and overwritten where the
  database can, when it is folded in.
- Time is an argument: milliseconds since 1970.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self

from shoal.transport.forms import Letter, Status

Accepted = Literal["accepted", "repeated", "conflict", "over", "replayed", "unissued"]
"""What became of a submission: it is in; it was in before; other bytes are in under its name; the study has ended; its nonce was used; its
ticket was not issued."""


LARGEST = (1 << 63) - 1
"""A number that a participant sends may be larger than any that a database knows."""


@dataclass(frozen=True, slots=True)
class Secrets:
    """What a coordinator keeps of itself: SHA-256 of the analyst's key, and the seed of the key that signs manifests."""

    analyst_digest: bytes
    signing_seed: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Hosted:
    """A study as it is served.

    Parameters
    ----------
    digest, manifest
        The digest in hexadecimal, and the manifest's bytes.
    opened, patience
        When it was published, and how long a phase or step waits: milliseconds.
    by_invitation
        Whether an invitation is needed to enrol.
    seats
        Names that participants are given in the order in which they enrol; None where names do not matter.
    queries
        What the analyst asks besides, as the protocol encodes it; empty for nothing.
    status, result, reason
        How it stands; the model, as the bytes of JSON, once there is one; why there is none.
    scope
        Which credentials count in it, where packets are admitted by tokens; None where they are not.
    """

    digest: str
    manifest: bytes
    opened: int
    patience: int
    by_invitation: bool = False
    seats: tuple[str, ...] | None = None
    queries: bytes = b""
    status: Status = "open"
    result: bytes | None = None
    reason: str | None = None
    scope: bytes | None = None


@dataclass(frozen=True, slots=True)
class Incoming:
    """What a participant sends for the aggregator.

    Parameters
    ----------
    sender
        The name of an enrolled participant; empty for what came anonymously.
    payload
        The message's bytes.
    name, digest
        SHA-256 of the submission's name (sender, type and name, or type and name where it is anonymous), and of the payload, with a token
        also of its pseudonym; None for a message that may come as often as it likes.
    nonce
        Of a signed request; None for an anonymous one.
    ticket
        SHA-256 of the ticket without which it is not accepted; None where it needs none.
    """

    sender: str
    payload: bytes
    name: bytes | None = None
    digest: bytes | None = None
    nonce: bytes | None = None
    ticket: bytes | None = None


@dataclass(frozen=True, slots=True)
class Named:
    """The name of something that is not kept, and digests of its bytes and of the ticket that it needs, if it needs one."""

    name: bytes
    digest: bytes
    ticket: bytes | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """What was accepted and is not folded in yet, under a number that means nothing but its place in the queue."""

    number: int
    sender: str
    payload: bytes
    name: bytes | None


@dataclass(frozen=True, slots=True)
class Loaded:
    """All that the next steps of a study need. ``state`` is None for one that was never started."""

    state: bytes | None
    held: tuple[Held, ...]
    alarms: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ending:
    """How a study ends: done with a result, or failed or closed with a reason."""

    status: Status
    result: bytes | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Folded:
    """What came of some steps, to be saved together.

    Parameters
    ----------
    state
        The state after them.
    taken
        Numbers of what was folded in, or was rejected: it is deleted.
    freed
        Names of submissions that were rejected, which others may use.
    letters
        Recipient, or None for everyone, and bytes.
    alarms, rung
        Times to wake at, and times that have passed.
    rejected
        How many were rejected, by code.
    ending
        How the study ended, if it did.
    """

    state: bytes
    taken: tuple[int, ...] = ()
    freed: tuple[bytes, ...] = ()
    letters: tuple[tuple[str | None, bytes], ...] = ()
    alarms: tuple[int, ...] = ()
    rung: tuple[int, ...] = ()
    rejected: Mapping[str, int] = field(default_factory=dict)
    ending: Ending | None = None


@dataclass(frozen=True, slots=True)
class Totals:
    """How many are enrolled, or are members of the study's scope; how many were accepted, and were refused by code."""

    enrolled: int
    accepted: int
    waiting: int
    refused: Mapping[str, int]


class Store(ABC):
    """The studies of one coordinator. A study is named by the digest of its manifest, in hexadecimal."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Let go of it; nothing is lost if this never happens."""

    @abstractmethod
    def ping(self) -> None:
        """`StoreError` where it cannot be used at present."""

    @abstractmethod
    def secrets(self, offered: Secrets) -> Secrets:
        """What the coordinator keeps of itself: what it has, or else what is offered, which it then keeps for ever."""

    @abstractmethod
    def publish(self, hosted: Hosted, invitations: Sequence[bytes] = ()) -> bool:
        """Begin a study, with digests of invitations; False, and nothing changed, where it is there already."""

    @abstractmethod
    def studies(self) -> tuple[Hosted, ...]:
        """All studies, in the order of their publication."""

    @abstractmethod
    def study(self, study: str) -> Hosted | None:
        """One of them."""

    @abstractmethod
    def enrol(
        self,
        study: str,
        key: bytes,
        name: str | None,
        ticket: bytes | None,
        invitation: bytes | None,
        nonce: bytes | None = None,
        expires: int = 0,
        answers: Sequence[int] = (),
    ) -> str:
        """Enrol a key; the name it has from now on. Enrolling again changes nothing and gives the same name.

        Parameters
        ----------
        study, key
            An open study, and the participant's public key.
        name
            A name from the roster; None for the next free seat, or, where there are no seats, for one made of the key.
        ticket
            SHA-256 of the ticket that the participant has drawn; None where there are no tickets.
        invitation
            SHA-256 of the invitation's code, which is used up.
        nonce, expires
            Of the signed request, remembered until then: it must not undo a later leave. Forgotten where the enrolment is refused.
        answers
            How many answers can come under the ticket in each phase: they are added to what is expected, and the study wakes.

        Raises
        ------
        RemoteProtocolError
            ``ENROL-001``: no such invitation, or it was used; no free seat; the study has ended. ``ENROL-002``: another ticket than
            before, or one that somebody else has. ``AUTH-005``: the nonce was used.
        """

    @abstractmethod
    def registered(self, study: str, key: bytes, commitment: bytes) -> bytes | None:
        """What was issued to a key in a study's scope for this commitment; None for a key that has not registered.

        Raises
        ------
        RemoteProtocolError
            ``ENROL-002``: it has registered with another commitment.
        """

    @abstractmethod
    def register(
        self,
        study: str,
        key: bytes,
        commitment: bytes,
        issued: bytes,
        invitation: bytes | None,
        nonce: bytes | None = None,
        expires: int = 0,
    ) -> tuple[str, bytes]:
        """Register a key for a credential of a study's scope, and enrol it; its name, and what is issued to it from now on.

        Registering again changes nothing and gives the same, in every study of the scope, and needs no second invitation. It is never
        undone, also not by `leave`: else one person could have two credentials. An invitation to any study of the scope will do.

        Parameters
        ----------
        study, key
            An open study that has a scope, and the participant's public key.
        commitment, issued
            SHA-256 of the commitment, and what the issuer has signed for it: kept where the key has not registered before.
        invitation, nonce, expires
            As for `enrol`.

        Raises
        ------
        RemoteProtocolError
            ``ENROL-001``: no such invitation, or it was used; the study has ended. ``ENROL-002``: another commitment than before.
            ``AUTH-005``: the nonce was used.
        """

    @abstractmethod
    def members(self, study: str, after: bytes = b"", most: int = LARGEST) -> tuple[bytes, ...]:
        """The public keys of all who have registered in a study's scope, in the order of their digits; none where it has no scope.

        Up to so many, after one of them.
        """

    @abstractmethod
    def submitted(self, study: str, after: bytes = b"", most: int = LARGEST) -> tuple[bytes, ...]:
        """The names of submissions that are in, in the order of their digits: up to so many, after one of them.

        Those of a study with a scope stay after its end.
        """

    @abstractmethod
    def told(self, study: str, number: int, after: bytes, most: int) -> tuple[bytes, ...]:
        """The names of submissions that were in when this list of them, or one of a larger number, was first asked for."""

    @abstractmethod
    def expected(self, study: str) -> tuple[int, Mapping[int, int]]:
        """How many have enrolled, and how many answers can come from all of them together under tickets: phase -> answers.

        In a study that has a scope, how many are its members.
        """

    @abstractmethod
    def name_of(self, study: str, key: bytes) -> str | None:
        """The name of an enrolled key; None for one that is not, or has left."""

    @abstractmethod
    def leave(self, study: str, key: bytes, nonce: bytes, expires: int) -> bool:
        """Forget an enrolment; the seat stays taken, and what was sent stays sent. False where the nonce was used."""

    @abstractmethod
    def use_many(self, study: str, named: Sequence[Named]) -> tuple[Accepted, ...]:
        """Note names with the digests of what came under them, in one transaction; what became of each.

        For DDML's updates, which are not kept.
        """

    @abstractmethod
    def accept(self, study: str, incoming: Sequence[Incoming], expires: int) -> tuple[Accepted, ...]:
        """Take submissions in, all in one transaction; what became of each. Nonces are remembered until they expire."""

    @abstractmethod
    def refuse(self, study: str, code: str, n: int = 1) -> None:
        """Count refusals."""

    @abstractmethod
    def due(self, now: int) -> tuple[str, ...]:
        """Open studies that have not begun, have something to fold in, or whose alarm has rung."""

    @abstractmethod
    def lease(self, study: str, holder: str, now: int, until: int) -> int | None:
        """Take the lease of a study; its term, or None where another holds it."""

    @abstractmethod
    def renew(self, study: str, holder: str, term: int, until: int) -> bool:
        """Have a lease last longer; False where it was given back, or is another's by now."""

    @abstractmethod
    def release(self, study: str, holder: str) -> None:
        """Give a lease back, so that others need not wait for its end."""

    @abstractmethod
    def load(self, study: str, now: int, most: int) -> Loaded:
        """The state, up to so many of what is held, in the order in which it came, and alarms up to now."""

    @abstractmethod
    def save(self, study: str, term: int, folded: Folded) -> bool:
        """Save what came of some steps; False, and nothing changed, where the lease is of another term or the study has ended."""

    @abstractmethod
    def end(self, study: str, ending: Ending) -> bool:
        """End an open study at once, as the analyst's closing does: what is held is deleted. False where it had ended."""

    @abstractmethod
    def latest(self, study: str) -> int:
        """The number of the last letter, to a participant or to everyone; 0 for none."""

    @abstractmethod
    def letters(self, study: str, name: str | None, after: int, most_bytes: int) -> tuple[Letter, ...]:
        """Letters to everyone, and to a participant, of larger numbers, in order; one if there is any, then up to so many bytes."""

    @abstractmethod
    def acknowledge(self, study: str, name: str, upto: int, nonce: bytes, expires: int) -> bool:
        """Delete a participant's own letters up to a number. False, and nothing is deleted, where the request's nonce was used before."""

    @abstractmethod
    def totals(self, study: str) -> Totals:
        """Counts for people: nothing about anyone."""

    @abstractmethod
    def tidy(self, now: int) -> None:
        """Forget expired nonces, and rid the disk of what was deleted, as far as the database can."""
