"""AnonML studies: constraints, parameters, prices, wording, peer and aggregator.

`shoal.study.registry` has `AnonMLProtocol`; audits, simulations and estimators call `build_params`
and `build_script`. Prices come from the script that real peers follow, so that the label, the
ledger and the peer cannot disagree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

from shoal.data.schema import Numeric
from shoal.mechanisms.calibrate import choose_mechanism
from shoal.messages.base import Message, Registry
from shoal.privacy.rounding import format_epsilon, sum_up
from shoal.protocols.anonml.analysis import (
    BITS,
    BLOCKS,
    PLACING,
    TABLES,
    compute_kind_shares,
    packet_bytes,
    report_bytes,
    table_errors,
)
from shoal.protocols.anonml.assignment import ticket_words
from shoal.protocols.anonml.messages import MESSAGES, AnonMLAsk, AnonMLPublication
from shoal.protocols.anonml.params import (
    AnonMLPaperParams,
    AnonMLParams,
    AnonMLPlusParams,
    count_cells,
)
from shoal.protocols.anonml.plus import AnonMLPlusScript
from shoal.protocols.anonml.script import AnonMLScript
from shoal.protocols.anonml.variants import make_script
from shoal.study.constraints import StudyProblem
from shoal.study.pricing import Forecast, PricedRelease, count_max_query_cells
from shoal.study.protocol import (
    Document,
    EncodedRows,
    ErrorMeasure,
    Holders,
    Hosting,
    LabelText,
    Seat,
    StudyDesign,
    StudyProtocol,
    TrustLevels,
    list_personal_exclusions,
    make_result_error,
)
from shoal.study.settings import AnonML
from shoal.study.spec import FeatureSpec, Study
from shoal.text import format_count

if TYPE_CHECKING:
    from shoal.protocols.machines import Aggregator, Peer
    from shoal.study.handle import StudyHandle
    from shoal.study.plan import Plan

MAX_SUBSETS = 200
"""Most subsets of features in the questions to one person. The paper's experiments have two."""
MAX_TABLES = 10_000
"""Most tables of all partitions. The paper's experiments have some dozens."""
MAX_RANKS = 1_000_000
"""Most features of all partitions, which each party puts in order."""
MAX_CELLS = 1_000_000
"""Most cells of all tables of one feature and the label."""
_MAX_CHOSEN_BINS = 32
_USELESS_FROM = 0.5
"""Error at which a table contains no information: its shares add up to 1."""

_QUESTIONS = {
    PLACING: "whether one of your numbers is above a given point",
    TABLES: "the bin of one of your features, and your label",
    BITS: "a yes or no about one feature, your label, or whether they agree",
    BLOCKS: "the levels of a few of your features, and your label",
}
"""Kinds of questions, for the label."""
_TASKS = {
    PLACING: "place quantiles",
    TABLES: "answer tables of one feature and the label",
    BITS: "answer one bit about a feature, the label, or whether they agree",
    BLOCKS: "answer about several features and the label together",
}
"""Kinds of questions, for the notes of a plan."""


class AnonMLProtocol(StudyProtocol):
    """AnonML: people with one row each send randomised answers without their names."""

    name = "anonml"
    title = "AnonML"
    holders = Holders("person", "people", "people")
    trust_levels: ClassVar[TrustLevels] = {"plus": ("local", "shuffled"), "paper": ("local",)}
    units = ("person",)
    paper_keys = ("n_partitions", "n_subsets", "subset_size")
    max_rows_per_participant = 1
    has_packets = True
    no_preview_reason = "There is no question to show."
    example_note = (
        "Its ticket and its cut points are made up, so that you may get another question."
    )
    retention = "each answer, until it is added to counts within moments; then it is deleted"
    suits = "people with one row each"

    @property
    def messages(self) -> Registry:
        """The message types of the protocol."""
        return MESSAGES

    def find_problems(self, study: Study) -> Iterator[StudyProblem]:
        """Yield each condition of AnonML that the study breaks."""
        yield from _check_settings(study)
        yield from _check_size(study)

    def is_anonymous(self, study: Study) -> bool:
        """Return True: answers carry a ticket or a token, never a name."""
        del study
        return True

    def build_params(self, study: Study) -> AnonMLParams:
        """Return the parameters that all parties of the study agree on."""
        return build_params(study)

    def build_script(self, params: Any, digest: bytes) -> AnonMLScript:
        """Return the script that follows from the parameters and the digest."""
        return make_script(params, digest)

    def price_releases(self, design: StudyDesign) -> list[PricedRelease]:
        """Return the answers of one person at the script's prices, which a ledger is charged.

        Notes
        -----
        Ref: AnonML §VI-A and §VII-D, equation 6; errata A-06.

        Privacy
        -------
        Unit person, replace, against everyone. The question is drawn without reading the row, so
        an answer costs its own epsilon and nothing more.
        """
        script = design.script
        counts = Counter(
            (_describe_question(script, name), event) for name, event in script.prices.items()
        )
        priced = [PricedRelease(name, event, count) for (name, event), count in counts.items()]
        return priced + _price_free_answers(design.study)

    def forecast(self, design: StudyDesign) -> list[Forecast]:
        """Return the expected errors of the tables at the declared size."""
        return _forecast_tables(design.script, design.study.participation.size)

    def forecast_minimum(self, design: StudyDesign) -> list[Forecast]:
        """Return the expected errors of the tables at the minimum participation."""
        return _forecast_tables(design.script, design.study.participation.minimum)

    def get_error_measure(self, study: Study) -> ErrorMeasure:
        """Return the error of the worst table."""
        del study
        return ErrorMeasure("root mean square error (L2) of the shares in the worst of the tables")

    def compute_paper_epsilon(self, design: StudyDesign) -> float | None:
        """Return the total of the paper's equation 6; None for variant ``plus``.

        Notes
        -----
        Ref: AnonML equation 6: the larger of the costs of one feature and of the label. It holds
        if features are independent (errata A-06). Free questions may be about that feature and
        about the label, and are added to both.
        """
        script = design.script
        if isinstance(script.params, AnonMLPlusParams):
            return None
        tables, medians = (
            [event.epsilon for name, event in script.prices.items() if name.startswith(kind)]
            for kind in ("table/", "median/")
        )
        free = [
            release.event.epsilon
            for release in _price_free_answers(design.study)
            for _ in range(release.count)
        ]
        return max(sum_up([tables[0], *medians[:1], *free]), sum_up([*tables, *free]))

    def make_label_text(self, design: StudyDesign) -> LabelText:
        """Return the label's text about packets and about the coordinator that reads them."""
        study, script = design.study, design.script
        same = "" if len(script.prices) == 1 else ". All packets have the same ticket"
        return LabelText(
            leaves=_describe_sent_data(study, script, "ticket", same),
            seen_by=_describe_recipients(study),
            not_covered=list_personal_exclusions(study),
            bytes=_count_sent_bytes(study, script),
        )

    def list_notes(self, plan: Plan) -> list[str]:
        """Return the share of the people for each kind of question, and the paper's own total."""
        notes = [_describe_assignment(plan.script)]
        paper = plan.paper_epsilon
        if paper is not None:
            notes.append(
                f"The paper's equation 6 gives epsilon {format_epsilon(paper)} for the same "
                "releases, but assumes that features are independent. The ledger counts the plain "
                f"sum, epsilon {format_epsilon(plan.loss.epsilon)}, which assumes nothing."
            )
        return notes

    def describe_participants(self, study: Study) -> str:
        """Return who takes part, with numbers."""
        asked = study.participation
        return f"{self.suits}: at least {asked.minimum:,}, {asked.size:,} expected"

    def describe_token_recipients(self, study: Study) -> tuple[str, str]:
        """Return who sees a packet with a token, and what the packet is called."""
        if study.trust == "shuffled":
            who = (
                "the coordinator, in one batch with the packets of all others, and anyone to whom "
                "it passes them on"
            )
        else:
            who = "the coordinator, and anyone to whom it passes the packet on"
        return who, "a packet"

    def make_peer(self, handle: StudyHandle, rows: EncodedRows, seat: Seat) -> Peer[Any]:
        """Return the peer that answers the questions of the participant's ticket."""
        from shoal.protocols.anonml.peer import AnonMLPeer

        return AnonMLPeer(handle.digest, handle.script, seat.ticket, *rows)

    def make_example_messages(
        self, handle: StudyHandle, first: Sequence[Message]
    ) -> Sequence[Message]:
        """Return the openings of the first and the last phase, the last one made up.

        Nearly everyone answers in one of the two.
        """
        del first
        return [
            AnonMLAsk(
                study=handle.digest,
                phase=phase,
                publication=_make_example_publication(handle.script, phase),
            )
            for phase in sorted({0, handle.script.n_phases - 1})
        ]

    def make_aggregator(self, handle: StudyHandle, hosting: Hosting) -> Aggregator[Any]:
        """Return the aggregator that counts answers, phase after phase."""
        from shoal.protocols.anonml.aggregator import AnonMLAggregator

        minimum, schedule = handle.study.participation.minimum, handle.manifest.schedule
        return AnonMLAggregator(
            handle.digest,
            handle.script,
            minimum,
            hosting.phase_timeout,
            opens=None if schedule is None else schedule.get_window(0).opened,
        )

    def count_phases(self, handle: StudyHandle) -> int:
        """Return the number of phases of the script."""
        n_phases: int = handle.script.n_phases
        return n_phases

    def count_answers(self, handle: StudyHandle, ticket: bytes) -> tuple[int, ...]:
        """Return the number of answers that a ticket allows in each phase."""
        script, words = handle.script, ticket_words(handle.digest, ticket)
        return tuple(
            len(script.list_question_numbers(phase, int(script.assign_groups(phase, words)[0])))
            for phase in range(script.n_phases)
        )

    def expect_answers(
        self,
        aggregator: Aggregator[Any],
        handle: StudyHandle,
        n_enrolled: int,
        expected: Mapping[int, int],
    ) -> Aggregator[Any]:
        """Return the aggregator with the number of answers that can still arrive, if known.

        The number is known when the declared number of people has enrolled. With tokens it is
        known in a script of one phase only, in which everyone answers: in longer scripts it is not
        known who answers in which phase.
        """
        from shoal.protocols.anonml.aggregator import AnonMLAggregator

        assert isinstance(aggregator, AnonMLAggregator)
        if n_enrolled < handle.study.participation.size:
            return aggregator
        script = aggregator.script
        if handle.has_tokens:
            if script.n_phases > 1:
                return aggregator
            answers: tuple[int, ...] = (n_enrolled * len(script.list_question_numbers(0, 0)),)
        else:
            answers = tuple(expected.get(phase, 0) for phase in range(script.n_phases))
        return AnonMLAggregator(
            aggregator.study,
            script,
            aggregator.minimum,
            aggregator.phase_timeout,
            answers,
            aggregator.opens,
        )

    def make_result(self, handle: StudyHandle, result: object) -> Document:
        """Return the model and the number of answers."""
        from shoal.protocols.anonml.aggregator import AnonMLResult

        del handle
        if not isinstance(result, AnonMLResult):
            raise make_result_error(result)
        return {
            "model": result.model.to_plain(),
            "counts": {"answers": list(result.answers), "late": result.late},
        }


def build_params(study: Study) -> AnonMLParams:
    """Return the parameters that all parties of an AnonML study agree on."""
    schema, epsilon, size = study.schema(), study.privacy.epsilon, study.participation.size
    if study.variant == "plus":
        return AnonMLPlusParams(
            schema, epsilon, size, trust="shuffled" if study.trust == "shuffled" else "local"
        )
    settings = study.anonml or AnonML()
    return AnonMLPaperParams(
        schema,
        epsilon,
        size,
        n_partitions=settings.n_partitions or 1,
        n_subsets=settings.n_subsets or 1,
        subset_size=settings.subset_size or 1,
        accounting=settings.accounting,
        classifier=settings.classifier,
        score=settings.score,
    )


def build_script(study: Study, digest: bytes) -> AnonMLScript:
    """Return the script of an AnonML study.

    Parameters
    ----------
    digest
        Digest of the manifest, which decides the feature subsets of variant ``paper``.
    """
    return make_script(build_params(study), digest)


def _check_size(study: Study) -> Iterator[StudyProblem]:
    """Yield a problem if a participant could not read the study in a moment.

    Everything here is computed before consent, from a manifest that anybody can write.
    """
    table, n_features = study.anonml, len(study.feature)
    n_partitions, n_subsets = (
        (1, 1) if table is None else (table.n_partitions or 1, table.n_subsets or 1)
    )
    if n_subsets > MAX_SUBSETS:
        yield StudyProblem(
            "SPEC-021",
            ("anonml", "n_subsets"),
            f"n_subsets = {n_subsets:,}: a person would send as many packets; at most "
            f"{MAX_SUBSETS:,} are allowed.",
            f"n_subsets = {MAX_SUBSETS}",
        )
    elif n_partitions * n_subsets > MAX_TABLES:
        yield StudyProblem(
            "SPEC-021",
            ("anonml", "n_partitions"),
            f"n_partitions ({n_partitions:,}) x n_subsets ({n_subsets:,}) = "
            f"{n_partitions * n_subsets:,} tables; at most {MAX_TABLES:,} can be learned.",
            f"n_partitions = {MAX_TABLES // n_subsets}",
        )
    elif n_partitions * n_features > MAX_RANKS:
        yield StudyProblem(
            "SPEC-021",
            ("anonml", "n_partitions"),
            f"n_partitions ({n_partitions:,}) x {n_features:,} features = "
            f"{n_partitions * n_features:,}; at most {MAX_RANKS:,} can be ordered.",
            f"n_partitions = {MAX_RANKS // n_features}",
        )
    n_labels = len(study.label.values or ())
    n_cells = n_labels * sum(_count_most_bins(feature) for feature in study.feature)
    if n_cells > MAX_CELLS:
        yield StudyProblem(
            "SPEC-021",
            ("label", "values"),
            f"The tables of {format_count(n_features, 'feature')} and a label with "
            f"{format_count(n_labels, 'value')} have {n_cells:,} cells; at most {MAX_CELLS:,} can "
            "be learned.",
            "Group values, or remove features.",
        )


def _count_most_bins(feature: FeatureSpec) -> int:
    """Return the most bins of a feature; numbers without public bins get some dozens at most."""
    if feature.range is not None:
        return _MAX_CHOSEN_BINS if feature.bins is None else len(feature.bins) + 1
    return len(feature.groups or feature.values or ())


def _make_example_publication(script: AnonMLScript, phase: int) -> AnonMLPublication:
    """Return a publication that the script allows: evenly spaced cut points, one level."""
    if phase == 0:
        return script.publish(())
    n_points, n_cuts, n_levels = script.publication_sizes(phase)
    cuts = tuple(_space_cuts(number, script.max_cuts(number)) for number in script.params.unbinned)
    publication = AnonMLPublication(points=(0.0,) * n_points, cuts=cuts[:n_cuts])
    features = script.bin_schema(publication).features[:n_levels]
    return publication.replace(levels=tuple((0,) * count_cells(feature) for feature in features))


def _space_cuts(number: Numeric, n: int) -> tuple[float, ...]:
    steps = (number.low + (number.high - number.low) * i / (n + 1) for i in range(n + 1))
    inside = sorted({step for step in steps if number.low <= step < number.high})
    return tuple(inside[1:]) or (number.low,)


def _check_settings(study: Study) -> Iterator[StudyProblem]:
    table = study.anonml
    if table is None:
        return
    if table.accounting == "paper" and study.variant == "plus":
        yield StudyProblem(
            "SPEC-022",
            ("anonml", "accounting"),
            "The accounting of equation 6 belongs to the paper's variant.",
            'accounting = "plain"',
        )
    for key, default in (("classifier", "logistic"), ("score", "f1")):
        if getattr(table, key) != default and study.variant == "plus":
            yield StudyProblem(
                "SPEC-022",
                ("anonml", key),
                f"{key} belongs to the paper's variant; plus has another learner.",
                f'Remove {key}, or variant = "paper"',
            )
    n_features = len(study.feature)
    if (
        table.n_subsets is not None
        and table.subset_size is not None
        and table.n_subsets * table.subset_size > n_features
    ):
        yield StudyProblem(
            "SPEC-021",
            ("anonml", "n_subsets"),
            f"n_subsets ({table.n_subsets}) x subset_size ({table.subset_size}) = "
            f"{table.n_subsets * table.subset_size}, "
            f"but there are {n_features} features. AnonML §VI-A: k_h k_s <= k_f.",
            f"n_subsets = {max(1, n_features // table.subset_size)}"
            if table.subset_size <= n_features
            else f"subset_size = {n_features}",
        )


def _describe_question(script: AnonMLScript, name: str) -> str:
    kind, _, number = name.partition("/")
    if isinstance(script.params, AnonMLPlusParams):
        return "one randomised answer to one question"
    if kind == "median":
        return f"a perturbed bit for the median of {number}"
    return (
        f"a perturbed table of {format_count(script.params.subset_size, 'feature')} and the label"
    )


def _price_free_answers(study: Study) -> list[PricedRelease]:
    """Return the answers to free questions, which ``[queries]`` allows."""
    if study.queries is None:
        return []
    cells = count_max_query_cells(study, study.queries)
    event = choose_mechanism(study.queries.epsilon_release, cells, study.participation.size).event()
    return [
        PricedRelease(
            "a randomised answer to a free question",
            event.with_reads(*study.queries.features),
            study.queries.n_queries,
        )
    ]


def _forecast_tables(script: AnonMLScript, n_people: int) -> list[Forecast]:
    """Return the expected error of each table from `n_people`, the smallest first.

    Notes
    -----
    Ref: AnonML Theorem 2, equation 4; errata A-04.
    """
    return [
        Forecast(
            "root mean square error (L2) of the shares in a table of "
            f"{format_count(table.cells, 'cell')} "
            f"from {format_count(table.answers, 'answer')} ({table.mechanism})",
            table.error,
            useless_from=_USELESS_FROM,
        )
        for table in table_errors(script, n_people)
    ]


def describe_token_packets(study: Study, script: AnonMLScript) -> str:
    """Return the data that leaves if packets are admitted by tokens."""
    same = ", with the number of your partition" + (
        "" if len(script.prices) == 1 else ". Nothing else links the packets of one person"
    )
    return _describe_sent_data(study, script, "token", same)


def _describe_sent_data(study: Study, script: AnonMLScript, admitted_by: str, same: str) -> str:
    free = (
        f"; and up to {format_count(study.queries.n_queries, 'randomised answer')} to free "
        "questions"
        if study.queries
        else ""
    )
    return f"{_describe_packets(script, admitted_by, same)}{free}. Nothing else about you leaves"


def _describe_packets(script: AnonMLScript, admitted_by: str, same: str) -> str:
    if isinstance(script, AnonMLPlusScript):
        kinds = [_QUESTIONS[kind] for kind in compute_kind_shares(script)]
        return (
            f"one packet: a {admitted_by} without your name, the number of one question, and a "
            f"randomised answer. The {admitted_by} decides at random what the question is about: "
            f"{', or '.join(kinds)}"
        )
    return (
        f"{format_count(len(script.prices), 'packet')}, each with a {admitted_by} without your "
        f"name, the number of a question, and a randomised answer{same}"
    )


def _describe_recipients(study: Study) -> str:
    if study.trust == "shuffled":
        return (
            "the coordinator, without your name and in one batch with the packets of all others, "
            "and anyone to whom it passes them on"
        )
    return (
        "the coordinator, and anyone to whom it passes the packet on. The packet has no name, but "
        "the coordinator receives the ticket when you enrol and could recognise your packet by "
        "it. The guarantee does not rely on your being anonymous"
    )


def _count_sent_bytes(study: Study, script: AnonMLScript) -> int:
    """Return the most bytes that leave: whole packets, and free answers without an envelope."""
    free = sum(
        release.count
        * report_bytes(release.event.mechanism, int(release.event.parameters["cardinality"]))
        for release in _price_free_answers(study)
    )
    return len(script.prices) * packet_bytes(script) + free


def _describe_assignment(script: AnonMLScript) -> str:
    """Return the share of the people for each kind of question, as a sentence."""
    if isinstance(script, AnonMLPlusScript):
        (first, share), *others = compute_kind_shares(script).items()
        parts = [
            f"{_format_percent(share)} of the people {_TASKS[first]}",
            *(f"{_format_percent(share)} {_TASKS[kind]}" for kind, share in others),
        ]
        return f"Everyone answers one question: {', '.join(parts)}."
    paper = script.params
    assert isinstance(paper, AnonMLPaperParams)
    tables = (
        f"{format_count(paper.n_subsets, 'table')} of "
        f"{format_count(paper.subset_size, 'feature')} and the label"
    )
    numbers = (
        f", and one bit about the median of each of {format_count(len(paper.unbinned), 'number')}"
        if paper.unbinned
        else ""
    )
    return (
        f"Everyone is in one of {format_count(paper.n_partitions, 'partition')} and answers "
        f"{tables}{numbers}."
    )


def _format_percent(share: Fraction) -> str:
    return f"{float(100 * share):.3g} %"
