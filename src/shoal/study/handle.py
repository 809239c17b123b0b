"""A study and everything that follows from its manifest alone, computed once.

Participants, coordinators and relays hold one `StudyHandle` for each study and read parameters,
script, plan and label from it. A handle has no state of a run, so that it can be shared between
requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from shoal.crypto.identity import Identity, Roster
from shoal.data.schema import Columns, FittedRows
from shoal.data.tables import drop_nameless_rows, limit_rows
from shoal.errors import SpecError
from shoal.study.delivery import (
    TokenSlots,
    check_schedule,
    compute_packet_size,
    has_tickets,
    has_tokens,
    make_offer_statement,
)
from shoal.study.label import Statement
from shoal.study.manifest import Manifest
from shoal.study.plan import Plan, price_design
from shoal.study.pricing import BudgetLine
from shoal.study.protocol import EncodedRows, Hosting, Seat, StudyDesign, StudyProtocol
from shoal.study.registry import make_design
from shoal.study.schedule import Schedule
from shoal.study.spec import Study
from shoal.text import format_count

if TYPE_CHECKING:
    from shoal.protocols.machines import Aggregator, Peer
    from shoal.protocols.secagg.member import SumMember
    from shoal.protocols.secagg.messages import SumParameters


@dataclass(frozen=True)
class StudyHandle:
    """A study and everything that follows from its manifest alone, computed once.

    Examples
    --------
    >>> from shoal.study.loader import parse_study_text
    >>> from shoal.study.starters import read_starter
    >>> handle = StudyHandle(Manifest(parse_study_text(read_starter("anonml"))))
    >>> handle.protocol.title, handle.plan.loss.epsilon, handle.script is handle.plan.script
    ('AnonML', 2.0, True)
    """

    manifest: Manifest

    @property
    def study(self) -> Study:
        """The study file."""
        return self.manifest.study

    @property
    def digest(self) -> bytes:
        """Digest of the manifest, to which participants consent."""
        return self.manifest.digest

    @property
    def protocol(self) -> StudyProtocol:
        """The protocol of the study."""
        return self.design.protocol

    @cached_property
    def design(self) -> StudyDesign:
        """The study with its parameters and script."""
        return make_design(self.study, self.digest)

    @property
    def params(self) -> Any:
        """The parameters that all parties of the study agree on."""
        return self.design.params

    @property
    def script(self) -> Any:
        """The script of the study; None for a protocol without rounds."""
        return self.design.script

    @cached_property
    def plan(self) -> Plan:
        """Every release of the study, priced; ``PLAN-001`` if a release has no price."""
        return price_design(self.design)

    @cached_property
    def slots(self) -> TokenSlots:
        """The slots for packets with tokens; AnonML and DDML only."""
        return TokenSlots(self.manifest, self.design)

    @cached_property
    def packet_size(self) -> int | None:
        """Size of each packet with a token, in bytes; None for a study without packets."""
        has_packets = self.has_tokens and self.protocol.has_packets
        return compute_packet_size(self.script) if has_packets else None

    @cached_property
    def schedule(self) -> Schedule:
        """The times of the phases; ``HOST-003`` if the study has none."""
        check_schedule(self.manifest)
        schedule = self.manifest.schedule
        assert schedule is not None, "only a study with packets has phases in a schedule"
        return schedule

    @property
    def has_tokens(self) -> bool:
        """Whether participants send anonymously and are admitted by tokens."""
        return has_tokens(self.manifest)

    @property
    def has_tickets(self) -> bool:
        """Whether participants send anonymously and are admitted by tickets."""
        return has_tickets(self.manifest)

    @cached_property
    def participant_names(self) -> tuple[str, ...]:
        """Names that the aggregator may write to, by position; empty if all get the same."""
        roster = tuple(member.name for member in self.manifest.roster)
        return roster or self.protocol.list_seats(self.study) or ()

    @property
    def seat_names(self) -> tuple[str, ...] | None:
        """Names for participants in the order of enrolment; None if there is a roster."""
        return None if self.manifest.roster else self.protocol.list_seats(self.study)

    def label(self, budget: BudgetLine | None = None, via: str | None = None) -> Statement:
        """Return the label as participants read it; see `make_offer_statement`."""
        return make_offer_statement(self.manifest, self.plan, budget, via)

    def check_role(self, *, is_reader: bool) -> None:
        """Raise ``HOST-003`` for a reader of a study that has no readers."""
        if is_reader and not self.protocol.has_readers:
            raise SpecError(
                "HOST-003",
                f"A study of {self.study.protocol} has no readers.",
                why="The coordinator publishes its result.",
                fix="Take part, or ask the analyst for the model.",
            )

    def encode_rows(self, table: Columns) -> EncodedRows:
        """Encode a participant's table; see `fit_rows`."""
        fitted = self.fit_rows(table)
        return fitted.columns, fitted.labels

    def fit_rows(self, table: Columns) -> FittedRows:
        """Encode a participant's table, with at most the allowed number of rows of each person.

        Cells that do not fit are changed, and rows left out, as `Schema.fit` says. A study with
        ``strict``, and one that takes a single row, refuse instead of leaving a row out.

        Raises
        ------
        SpecError
            A column is absent, or a cell is refused; the message names the column.
        """
        study = self.study
        schema, n_nameless = study.schema(), 0
        if study.data is not None:
            if not study.strict:
                table, n_nameless = drop_nameless_rows(table, study.data.person)
            table, _ = limit_rows(table, study.data.person, study.data.max_rows_per_person)
        if study.strict:
            fitted = FittedRows(schema.encode(table), schema.encode_label(table), {}, {}, 0)
        else:
            fitted = schema.fit(table)
            fitted = replace(fitted, n_left_out=fitted.n_left_out + n_nameless)
        n, n_rows = self.protocol.max_rows_per_participant, len(fitted.labels) + fitted.n_left_out
        if n is not None and n_rows != n:
            raise SpecError(
                "DATA-007",
                f"The data has {format_count(n_rows, 'row')}; this study takes one row from each "
                "person.",
                why="The guarantee holds for a person with one row.",
                fix="Give a table with your own row alone.",
            )
        if n is not None and fitted.n_left_out:
            # The only row cannot be left out: raise the error that names the column.
            for part in (*schema.features, *schema.texts):
                if part.name in fitted.unusable:
                    part.encode(table[part.name])
            schema.encode_label(table)
        return fitted

    def make_peer(self, rows: EncodedRows | None, seat: Seat) -> Peer[Any]:
        """Return the peer of a participant.

        Parameters
        ----------
        rows
            The participant's data, from `encode_rows`; a reader may have none.

        Raises
        ------
        SpecError
            ``DATA-006``: there are no rows. ``MANIFEST-002``: the key is not on the roster.
            ``HOST-003``: the study has no readers.
        """
        self.check_role(is_reader=seat.is_reader)
        if seat.is_reader:
            return self.protocol.make_reader(self, rows)
        if rows is None:
            raise SpecError("DATA-006", "No data is given.", fix="Give a table: --data FILE")
        return self.protocol.make_peer(self, rows, seat)

    def make_aggregator(self, hosting: Hosting) -> Aggregator[Any] | None:
        """Return the aggregator that a coordinator hosts; None for DDML, which has none.

        Raises
        ------
        SpecError
            ``SDQ-002``: a free count is not allowed by the study. ``MSG-008``: the free counts
            cannot be decoded.
        """
        return self.protocol.make_aggregator(self, hosting)

    def expect_answers(
        self, aggregator: Aggregator[Any], n_enrolled: int, expected: Mapping[int, int]
    ) -> Aggregator[Any]:
        """Return the aggregator with the number of answers that can still arrive, if known."""
        return self.protocol.expect_answers(aggregator, self, n_enrolled, expected)

    def count_answers(self, ticket: bytes) -> tuple[int, ...]:
        """Return the number of answers of a ticket in each phase; empty without tickets."""
        return self.protocol.count_answers(self, ticket)

    def find_roster_position(self, identity: Identity) -> int:
        """Return the position of a key on the roster; raise ``MANIFEST-002`` if absent."""
        keys = [member.key for member in self.manifest.roster]
        if identity.public_key not in keys:
            raise SpecError(
                "MANIFEST-002",
                "Your key is not on the roster of the study.",
                why=f"It is {identity.public_key.hex()}.",
                fix="Send it to the analyst (shoal identity), who makes the roster; or use the "
                "ledger with a key that is on it: --ledger PATH",
            )
        return keys.index(identity.public_key)

    def make_sum_member(self, identity: Identity, threshold: int) -> SumMember:
        """Return the member of a secure sum that has this key."""
        from shoal.protocols.secagg.member import SumMember

        position = self.find_roster_position(identity)
        return SumMember(self.make_sum_parameters(threshold), position, identity)

    def make_sum_parameters(self, threshold: int) -> SumParameters:
        """Return the parameters of the study's secure sums, with the keys of the roster."""
        from shoal.protocols.secagg.messages import SumParameters

        names, keys = zip(
            *((member.name, member.key) for member in self.manifest.roster), strict=True
        )
        return SumParameters(self.digest, Roster(names, keys), threshold)
