"""The interface between shoal and one protocol, and the records that pass through it.

`shoal.study.anonml`, `ddml`, `sdq` and `pfds` implement `StudyProtocol`; `shoal.study.registry`
has the table of them. Outside of the files that are named after a protocol, only
`shoal.report.sections.protocols` compares a protocol's name; other modules call a method or read an
attribute of this class. A new protocol adds one implementation and one line in the table.

Methods that make peers, aggregators or results import them when they are called. Reading and
pricing a study must not load the code that runs it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy.typing as npt

from shoal.crypto.identity import Identity
from shoal.errors import LocalProtocolError
from shoal.messages.base import Message, Registry
from shoal.privacy.events import Event, Unit
from shoal.study.constraints import DeclaredRoster, StudyProblem
from shoal.study.pricing import Forecast, PricedRelease, describe_overlap_cost
from shoal.study.spec import Study
from shoal.text import format_count

if TYPE_CHECKING:
    from shoal.protocols.machines import Aggregator, Peer
    from shoal.study.handle import StudyHandle
    from shoal.study.plan import Plan

Document = dict[str, Any]
"""A study file as plain data, before validation."""
EncodedRows = tuple[dict[str, npt.NDArray[Any]], npt.NDArray[Any]]
"""Encoded columns by name, and encoded labels."""
TrustLevels = Mapping[str, tuple[str, ...]]

MARK = "READ FROM THE DATA"
"""Remark in a draft of a study on content that is not public knowledge yet."""
UNDO = "You may leave at any time. What was already sent cannot be taken back."
DATABASE_UNDO = (
    "Your database may leave at any time. What it has already sent cannot be taken back."
)
NOISE_ADVICE = "Ask for more participants, or for a larger epsilon"


@dataclass(frozen=True)
class Holders:
    """The participants of a protocol, as nouns.

    Parameters
    ----------
    size_noun
        What `Participation.size` counts.
    collusion
        What a member of a secure sum might do against the others; empty without secure sums.
    count_key
        Key of the protocol's table with the number of members; None without a list of members.
    """

    singular: str
    plural: str
    size_noun: str
    collusion: str = ""
    count_key: str | None = None

    @property
    def are_organisations(self) -> bool:
        """Whether each participant holds the rows of many people."""
        return self.count_key is not None


@dataclass(frozen=True)
class LabelText:
    """The parts of a label that depend on the protocol; fields are those of `Statement`."""

    leaves: str
    seen_by: str
    not_covered: tuple[str, ...]
    rests_on: tuple[str, ...] = ()
    bytes: int | None = None
    n_weights: int | None = None
    max_rows: int | None = None
    colluders: tuple[int, int] | None = None
    provided: str = ""
    undo: str = UNDO


@dataclass(frozen=True)
class ErrorMeasure:
    """The error that a forecast without rows reports.

    Parameters
    ----------
    description
        The quantity, without figures that depend on the size of the study.
    is_count
        True if the plan forecasts it in records. It is then reported relative to an average count.
    """

    description: str
    is_count: bool = False


@dataclass(frozen=True)
class Seat:
    """The place of one participant in a study.

    Parameters
    ----------
    identity
        The key under which the participant takes part; the one on the roster if there is a roster.
    ticket
        AnonML: the ticket that decides the participant's questions.
    position
        Position among the holders of a PFDS study without a roster, assigned by the coordinator.
    is_reader
        Whether the participant reads the release and sends nothing.
    """

    identity: Identity
    ticket: bytes = b""
    position: int | None = None
    is_reader: bool = False


@dataclass(frozen=True)
class Hosting:
    """The settings of a coordinator for one study that are not in its manifest.

    Parameters
    ----------
    phase_timeout
        Longest wait for the answers of a phase.
    queries
        SDQ: the free counts that the analyst asks for, encoded.
    """

    phase_timeout: timedelta
    queries: bytes = b""


@dataclass(frozen=True)
class StudyDesign:
    """A study with the parameters and the script that follow from it, each computed once.

    Parameters
    ----------
    digest
        Digest of the manifest, which decides the questions of AnonML's variant ``paper``.
    """

    protocol: StudyProtocol
    study: Study
    digest: bytes

    @cached_property
    def params(self) -> Any:
        """The parameters that all parties of the study agree on."""
        return self.protocol.build_params(self.study)

    @cached_property
    def script(self) -> Any:
        """The script of the study; None for a protocol without rounds."""
        return self.protocol.build_script(self.params, self.digest)


COUNT_ERROR = ErrorMeasure(
    "noise on a count, as a share of an average count (standard deviation; from 0.5 on, most of "
    "the result is noise)",
    is_count=True,
)


class StudyProtocol(ABC):
    """Everything that the rest of shoal needs to know about one protocol."""

    name: ClassVar[str]
    """As in the study file."""
    title: ClassVar[str]
    """As in the paper."""
    holders: ClassVar[Holders]
    trust_levels: ClassVar[TrustLevels]
    """Variant -> trust levels that it has, the default first."""
    units: ClassVar[tuple[str, ...]]
    """Units that the protocol can protect, the default first."""
    retention: ClassVar[str]
    """What a coordinator stores of this protocol, and for how long."""
    suits: ClassVar[str]
    """Who holds the rows, in a few words: "people with one row each"."""

    needs_table: ClassVar[bool] = False
    """True if a study must have the protocol's table in every variant."""
    paper_keys: ClassVar[tuple[str, ...]] = ()
    """Keys of the protocol's table that variant ``paper`` requires and ``plus`` does not allow."""
    predicts_numbers: ClassVar[bool] = False
    learns_text: ClassVar[bool] = False
    has_updates: ClassVar[bool] = False
    """True if a participant may send several updates (``n_updates``)."""
    has_packets: ClassVar[bool] = False
    """True if answers with tokens travel as packets of one size, each at a random time."""
    no_preview_reason: ClassVar[str]
    """Why there is no example of an answer."""
    example_note: ClassVar[str] = ""
    """A sentence about how an example differs from an answer."""
    has_readers: ClassVar[bool] = False
    """True if a participant may read the release without sending anything."""
    publishes_rows: ClassVar[bool] = False
    """True if the result is a dataset that others may train on, not a model alone."""
    has_free_counts: ClassVar[bool] = False
    """True if the analyst may ask for free counts when a study is served (``--queries``)."""
    max_rows_per_participant: ClassVar[int | None] = None
    """Most rows of one participant; None for no limit."""

    @property
    @abstractmethod
    def messages(self) -> Registry:
        """The message types of the protocol."""

    # Study file

    def fill_defaults(self, document: Document, variant: str, trust: str) -> Document:
        """Return the document with defaults of the protocol's table that depend on other keys.

        Keys that are given, or cannot be read, stay as they are.
        """
        del variant, trust
        return document

    def check_delta(self, study: Study) -> Iterator[StudyProblem]:
        """Yield problems with the study's delta."""
        if study.privacy.delta > 0 and not self.allows_delta(study):
            yield StudyProblem(
                "SPEC-022",
                ("privacy", "delta"),
                f"{self.name} with trust {study.trust} is pure: it has no delta.",
                "Remove delta.",
            )

    def allows_delta(self, study: Study) -> bool:
        """Return whether the guarantee of the study may have a delta."""
        return study.trust == "shuffled"

    @abstractmethod
    def find_problems(self, study: Study) -> Iterator[StudyProblem]:
        """Yield each condition of the protocol that the study breaks."""

    def needs_roster(self, study: Study) -> bool:
        """Return whether only members with keys in the manifest can take part."""
        return study.trust == "secure-sum"

    def is_anonymous(self, study: Study) -> bool:
        """Return whether participants send without a name and are admitted by token or ticket."""
        del study
        return False

    def needs_enrolment(self, study: Study) -> bool:
        """Return whether a participant that sends has to enrol first."""
        del study
        return True

    def has_joint_computations(self, study: Study) -> bool:
        """Return whether participants run joint computations, in a child process."""
        del study
        return False

    def count_members(self, study: Study) -> int:
        """Return the number of members that the study declares; 0 without a list of members."""
        key = self.holders.count_key
        return 0 if key is None else getattr(getattr(study, self.name), key)

    def declare_roster(self, study: Study) -> DeclaredRoster:
        """Return the members that a study of organisations declares."""
        holders, table = self.holders, getattr(study, self.name)
        assert holders.count_key is not None, "the protocol has a list of members"
        return DeclaredRoster(
            self.name,
            holders.count_key,
            holders.plural,
            getattr(table, holders.count_key),
            study.participation.minimum,
            table.max_colluders,
        )

    def scale_starter(self, size: int) -> dict[str, tuple[int, str]]:
        """Return keys of the starter study with values for `size` rows, each with a remark.

        The remark on a value that follows from the number of rows begins with `MARK`.
        """
        remark = f"{MARK}: half of the rows; a study with fewer ends without a result"
        return {"minimum": (max(1, size // 2), remark)}

    # Price and label

    @abstractmethod
    def build_params(self, study: Study) -> Any:
        """Return the parameters that all parties of the study agree on."""

    def build_script(self, params: Any, digest: bytes) -> Any:
        """Return the script that follows from the parameters; None without rounds."""
        del params, digest

    @abstractmethod
    def price_releases(self, design: StudyDesign) -> list[PricedRelease]:
        """Return each kind of release with the price that a ledger charges for it."""

    @abstractmethod
    def forecast(self, design: StudyDesign) -> list[Forecast]:
        """Return expected errors at the declared size."""

    def forecast_minimum(self, design: StudyDesign) -> list[Forecast] | None:
        """Return expected errors at the minimum participation; None if they are not known."""
        del design
        return None

    def advise_on_noise(self, study: Study) -> str:
        """Return the advice for a study with a result of mostly noise."""
        del study
        return NOISE_ADVICE

    @abstractmethod
    def get_error_measure(self, study: Study) -> ErrorMeasure:
        """Return the error that a forecast without rows reports."""

    def charge(self, design: StudyDesign, event: Event) -> Event:
        """Return the event that a ledger is charged for a release."""
        del design
        return event

    def compute_paper_epsilon(self, design: StudyDesign) -> float | None:
        """Return the total by the paper's own accounting; None without one."""
        del design
        return None

    @abstractmethod
    def make_label_text(self, design: StudyDesign) -> LabelText:
        """Return the parts of the label that depend on the protocol."""

    def list_notes(self, plan: Plan) -> list[str]:
        """Return the notes of a plan that depend on the protocol."""
        del plan
        return []

    @abstractmethod
    def describe_participants(self, study: Study) -> str:
        """Return who takes part, with numbers."""

    def describe_token_recipients(self, study: Study) -> tuple[str, str]:
        """Return who sees a packet with a token, and what the packet is called."""
        raise LocalProtocolError("PROTO-001", f"A study of {study.protocol} takes no tokens.")

    # Runs

    @abstractmethod
    def make_peer(self, handle: StudyHandle, rows: EncodedRows, seat: Seat) -> Peer[Any]:
        """Return the peer of a participant that sends."""

    def make_reader(self, handle: StudyHandle, rows: EncodedRows | None) -> Peer[Any]:
        """Return the peer of a participant that only reads; see `has_readers`."""
        del rows
        raise LocalProtocolError("PROTO-001", f"A study of {handle.study.protocol} has no readers.")

    def make_aggregator(self, handle: StudyHandle, hosting: Hosting) -> Aggregator[Any] | None:
        """Return the aggregator of a study; None for a protocol that merges single updates."""
        del handle, hosting
        return None

    def make_example_messages(
        self, handle: StudyHandle, first: Sequence[Message]
    ) -> Sequence[Message]:
        """Return messages of an aggregator to which a peer replies with example answers.

        They follow from the manifest: no coordinator is asked.

        Parameters
        ----------
        first
            The first messages of the peer that have no price.
        """
        del handle, first
        return ()

    def list_seats(self, study: Study) -> tuple[str, ...] | None:
        """Return names for participants in the order of enrolment; None if they have no names."""
        del study
        return None

    def count_phases(self, handle: StudyHandle) -> int | None:
        """Return the number of phases that wait for answers; None if it depends on the answers."""
        del handle
        return 1

    def count_expected_updates(self, handle: StudyHandle) -> int | None:
        """Return after how many merged updates a study ends; None for a study with phases."""
        del handle
        return None

    def count_required(self, handle: StudyHandle) -> int:
        """Return how many participants, or updates, a study needs for a result."""
        return handle.study.participation.minimum

    def count_answers(self, handle: StudyHandle, ticket: bytes) -> tuple[int, ...]:
        """Return the number of answers of a ticket in each phase; empty without tickets."""
        del handle, ticket
        return ()

    def expect_answers(
        self,
        aggregator: Aggregator[Any],
        handle: StudyHandle,
        n_enrolled: int,
        expected: Mapping[int, int],
    ) -> Aggregator[Any]:
        """Return the aggregator with the number of answers that can still arrive, if known."""
        del handle, n_enrolled, expected
        return aggregator

    @abstractmethod
    def make_result(self, handle: StudyHandle, result: object) -> Document:
        """Return the published content of a finished study: model and counts."""

    def compute_max_bytes(self, *, is_anonymous: bool) -> int:
        """Return the largest message of a participant, with or without its name, in bytes."""
        kinds = (
            kind
            for kind in self.messages.values()
            if kind.submission is not Message.submission and kind.is_anonymous == is_anonymous
        )
        return max((kind.max_bytes for kind in kinds), default=Message.max_bytes)


def fill_table(table: Document, defaults: Document) -> Document:
    """Return a table with defaults for keys that are absent or None."""
    return table | {key: value for key, value in defaults.items() if table.get(key) is None}


def make_result_error(result: object) -> LocalProtocolError:
    """Return the error for a result of another protocol."""
    return LocalProtocolError(
        "PROTO-001", f"A {type(result).__name__} is not the result of this study's protocol."
    )


ENROLMENT = "that you enrolled"
"""The first item of `list_personal_exclusions`."""
_OTHER_STUDIES = "studies that are not in your ledger"


def list_personal_exclusions(study: Study, first: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the facts that no guarantee for a person or a device covers."""
    misfit = (
        "whether your data fits the study's ranges and values: if not, you cannot take part, and "
        "others may notice"
        if study.strict
        else "whether you have data with values that the study lists: without any you cannot take "
        "part, and others may notice. Numbers outside a range are moved to its end"
    )
    return (
        ENROLMENT,
        misfit,
        *first,
        "what the model says about people like you, whether or not you take part",
        _OTHER_STUDIES,
    )


def list_organisation_exclusions(study: Study, first: Sequence[str]) -> tuple[str, ...]:
    """Return the facts that no guarantee for an organisation's rows covers, `first` at the head."""
    overlap = (
        f"a person in k of the databases spends {describe_overlap_cost(study)}"
        if study.unit is Unit.PERSON
        else "rows of the same person in other databases: each database spends separately"
    )
    misfit = (
        "whether all your rows fit the study's ranges and values: a single row that does not "
        "keeps your organisation out, and others may notice"
    )
    items = [
        *first,
        *([misfit] if study.strict else []),
        "that your organisation takes part, and what its records have in common",
        overlap,
        "what the model says about people like those in your database, whether or not they are in "
        "it",
        _OTHER_STUDIES,
    ]
    if study.unit is Unit.RECORD:
        items.insert(0, "several rows of one person together: each row is protected separately")
    return tuple(items)


def describe_organisations(study: Study, n_members: int, noun: str) -> str:
    """Return who takes part in a study of organisations, with numbers."""
    asked = study.participation
    return (
        f"{format_count(n_members, noun)} (at least {asked.minimum:,} must answer) with "
        f"{asked.size:,} rows in total (a public estimate)"
    )
