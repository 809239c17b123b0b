"""PFDS studies: constraints, defaults, parameters, prices, wording, peer and aggregator.

`shoal.study.registry` has `PFDSProtocol`; audits, simulations, releases and estimators call
`build_params`. Prices come from the protocol's own rules, so that the label, the ledger and the
peer cannot disagree.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar

from shoal.errors import LocalProtocolError, RemoteProtocolError
from shoal.messages.base import Registry
from shoal.privacy.events import Event, Unit
from shoal.protocols.pfds import tables
from shoal.protocols.pfds.analysis import compute_cell_noise, compute_expected_leaves
from shoal.protocols.pfds.messages import MESSAGES
from shoal.protocols.pfds.paper import script as paper_script
from shoal.protocols.pfds.paper.script import count_projected_levels
from shoal.protocols.pfds.paper.tree import compute_depth
from shoal.protocols.pfds.params import PFDSParams, PFDSRows
from shoal.protocols.pfds.script import SecureSumScript
from shoal.study.constraints import (
    DeclaredRoster,
    StudyProblem,
    check_member_count,
    check_no_colluders,
    check_survivor_quorum,
    default_colluders,
    describe_dropout,
    describe_sum_trust,
    read_member_count,
)
from shoal.study.pricing import COUNT_BYTES, Forecast, PricedRelease
from shoal.study.protocol import (
    COUNT_ERROR,
    DATABASE_UNDO,
    MARK,
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
    describe_organisations,
    fill_table,
    list_organisation_exclusions,
    make_result_error,
)
from shoal.study.settings import PFDS
from shoal.study.spec import Study
from shoal.text import format_count

if TYPE_CHECKING:
    from shoal.protocols.machines import Aggregator, Peer
    from shoal.study.handle import StudyHandle
    from shoal.study.plan import Plan

_MAX_PAPER_DEPTH = 8
"""Default depth of the paper's trees, if there are as many features."""

_CELL_NOISE = "noise on one cell of a pooled table, as a share of its rows (standard deviation)"

MAX_SPLITS = 100_000
"""Most splits that are compared at a node. A participant draws an example before consent."""
_TREE_KEYS = ("max_depth", "n_candidates", "n_levels", "n_buckets", "labelling", "projection")
"""Keys of the paper's trees."""
_QUESTIONS = {
    "split": "the choice of split values of a level",
    "leaves": "the classes in the leaves",
    "count": "the number of records in the nodes of a level",
    "calibration": "sums of a table of scores",
    "residuals": "sums of residuals",
    "search": "sums of a second table of scores",
}
"""Kinds of questions, as the protocol names them, in words for the label."""
_NOISY_TREES = (
    "The paper's trees are mostly noise at such figures: on census data (Adult) their error is "
    "that of always guessing the most common class (errata P-01). Ask for fewer levels, more rows "
    'or a larger epsilon; variant = "plus" learns more for the same epsilon'
)
_STARTER_HOLDERS, _MIN_STARTER_HOLDERS, _STARTER_ROWS = 20, 3, 100
"""Most and fewest holders of a starter study, and rows for each of them."""


class PFDSProtocol(StudyProtocol):
    """PFDS: organisations share tables or trees with noise; rows and a model follow from them."""

    name = "pfds"
    title = "PFDS"
    holders = Holders("holder", "holders", "rows", "helps those who read the sums", "n_holders")
    trust_levels: ClassVar[TrustLevels] = {"plus": ("local", "secure-sum"), "paper": ("local",)}
    units = ("record", "person")
    needs_table = True
    predicts_numbers = True
    has_readers = True
    no_preview_reason = (
        "Your numbers are masked together with those of the other holders, after these have "
        "answered. There is nothing to show before that."
    )
    example_note = (
        "Without a roster it is drawn for a random position among the holders, which decides the "
        "features."
    )
    publishes_rows = True
    retention = (
        "the answers of each organisation, until they are added up within moments; the release, "
        "without a limit in time"
    )
    suits = "organisations that share data"

    @property
    def messages(self) -> Registry:
        """The message types of the protocol."""
        return MESSAGES

    def fill_defaults(self, document: Document, variant: str, trust: str) -> Document:
        """Return the document with colluders and the figures of trees in ``[pfds]``."""
        table = document.get("pfds")
        if not isinstance(table, dict):
            return document
        colluders = default_colluders(read_member_count(table, "n_holders"), trust)
        defaults = colluders | _default_trees(document, table, variant)
        return {**document, "pfds": fill_table(table, defaults)}

    def allows_delta(self, study: Study) -> bool:
        """Return whether secure sums add Gaussian noise."""
        return study.trust == "secure-sum"

    def find_problems(self, study: Study) -> Iterator[StudyProblem]:
        """Yield each condition of PFDS that the study breaks."""
        if study.pfds is not None:
            members = self.declare_roster(study)
            # Numbers are compared only if the keys that they belong to have a meaning.
            yield from list(_check_keys(study, study.pfds, members)) or _check_numbers(
                study, study.pfds, members
            )

    def build_params(self, study: Study) -> PFDSParams:
        """Return the parameters that all parties of the study agree on."""
        return build_params(study)

    def build_script(self, params: Any, digest: bytes) -> SecureSumScript | None:
        """Return the script of secure sums; None for trust local, which has one answer."""
        del digest
        return SecureSumScript(params) if params.trust == "secure-sum" else None

    def price_releases(self, design: StudyDesign) -> list[PricedRelease]:
        """Return the questions of the study's variant and trust, at the protocol's prices.

        Notes
        -----
        Ref: PFDS Theorem 3.3: epsilon / 2 for the tree (h_max steps on a path) and epsilon / 2 for
        the counts of p - 1 levels. Nodes of a level hold different records, so that a record pays
        for one of them. Holders hold different records too, and each has a separate ledger.

        Privacy
        -------
        Unit record (or person), add-remove. `PFDSParams` decides the adversary.
        """
        params: PFDSParams = design.params
        prices, tables_text = _price_questions(params), _describe_tables(params)
        grouped = groupby(prices, key=lambda question: (_parse_kind(question), prices[question]))
        return [
            PricedRelease(_QUESTIONS.get(kind, tables_text), event, len(list(questions)))
            for (kind, event), questions in grouped
        ]

    def scale_starter(self, size: int) -> dict[str, tuple[int, str]]:
        """Return holders for `size` rows, and the minimum of them."""
        n = max(_MIN_STARTER_HOLDERS, min(_STARTER_HOLDERS, size // _STARTER_ROWS))
        minimum = -(-3 * n // 4)
        return {
            "minimum": (minimum, f"{MARK}: organisations that must share"),
            "n_holders": (n, f"{MARK}: m, a guess from the number of rows"),
        }

    def forecast(self, design: StudyDesign) -> list[Forecast]:
        """Return the expected noise on a cell or a leaf."""
        return forecast_pfds(design.params)

    def advise_on_noise(self, study: Study) -> str:
        """Return the advice for a study with a result of mostly noise."""
        return _NOISY_TREES if study.variant == "paper" else super().advise_on_noise(study)

    def get_error_measure(self, study: Study) -> ErrorMeasure:
        """Return the noise on a cell of a pooled table, or on a leaf."""
        return ErrorMeasure(_CELL_NOISE) if study.variant == "plus" else COUNT_ERROR

    def make_label_text(self, design: StudyDesign) -> LabelText:
        """Return the label's text about tables, trees and holders that collude."""
        study, params = design.study, design.params
        return LabelText(
            leaves=_describe_sent_data(params),
            seen_by=_describe_recipients(params),
            not_covered=list_organisation_exclusions(study, _list_exclusions(params)),
            rests_on=_list_assumptions(params),
            max_rows=study.max_rows,
            colluders=None if params.trust == "local" else (params.max_colluders, params.n_holders),
            undo=DATABASE_UNDO,
        )

    def list_notes(self, plan: Plan) -> list[str]:
        """Return that half of epsilon is not spent, for trees without the projection."""
        params: PFDSParams = plan.params
        if params.projection or params.variant == "plus":
            return []
        return [
            "Without the projection no level is counted: the half of the study's epsilon that is "
            "reserved for this is not spent."
        ]

    def describe_participants(self, study: Study) -> str:
        """Return who takes part, with numbers."""
        return describe_organisations(study, self.count_members(study), "organisation")

    def make_peer(self, handle: StudyHandle, rows: EncodedRows, seat: Seat) -> Peer[Any]:
        """Return the peer of a holder: secure sums, trees of the paper, or local tables."""
        from shoal.protocols.pfds.paper.peer import PaperPeer
        from shoal.protocols.pfds.peer import LocalPeer, SecureSumPeer

        params: PFDSParams = handle.params
        if params.trust == "secure-sum":
            return SecureSumPeer(
                handle.script,
                handle.make_sum_member(seat.identity, params.minimum),
                PFDSRows.from_columns(params, *rows),
            )
        position = _find_position(handle, seat)
        if params.variant == "paper":
            name = handle.participant_names[position]
            tree_rows = paper_script.TreeRows.from_columns(params, *rows)
            return PaperPeer(params, handle.digest, name, tree_rows)
        return LocalPeer(params, handle.digest, position, PFDSRows.from_columns(params, *rows))

    def make_reader(self, handle: StudyHandle, rows: EncodedRows | None) -> Peer[Any]:
        """Return the peer of a holder that only reads the release."""
        from shoal.protocols.pfds.paper.peer import PaperReadOnlyPeer
        from shoal.protocols.pfds.peer import ReadOnlyPeer

        params: PFDSParams = handle.params
        if params.variant == "paper":
            return PaperReadOnlyPeer(params, handle.digest)
        return ReadOnlyPeer(
            params,
            handle.digest,
            None if rows is None else PFDSRows.from_columns(params, *rows),
        )

    def make_aggregator(self, handle: StudyHandle, hosting: Hosting) -> Aggregator[Any]:
        """Return the aggregator of the study's variant and trust."""
        from shoal.protocols.pfds.aggregator import LocalAggregator, SecureSumAggregator
        from shoal.protocols.pfds.paper.aggregator import PaperAggregator

        params: PFDSParams = handle.params
        if params.trust == "secure-sum":
            sums = handle.make_sum_parameters(params.minimum)
            return SecureSumAggregator(handle.script, sums, hosting.phase_timeout)
        kind = PaperAggregator if params.variant == "paper" else LocalAggregator
        return kind(params, handle.digest, handle.participant_names, hosting.phase_timeout)

    def count_phases(self, handle: StudyHandle) -> int | None:
        """Return 2 for variant ``paper`` and 1 for ``plus``; None with secure sums."""
        if handle.study.trust == "secure-sum":
            return None
        return 2 if handle.study.variant == "paper" else 1

    def list_seats(self, study: Study) -> tuple[str, ...]:
        """Return names for holders in the order of enrolment."""
        return tuple(f"holder-{i}" for i in range(self.count_members(study)))

    def make_result(self, handle: StudyHandle, result: object) -> Document:
        """Return the model, or the trees and rows of the holders, and the holders left out."""
        from shoal.protocols.pfds.aggregator import PFDSResult
        from shoal.protocols.pfds.paper.aggregator import PFDSPaperResult
        from shoal.protocols.pfds.paper.document import list_left_out, make_paper_document

        if isinstance(result, PFDSPaperResult):
            return make_paper_document(handle.params, handle.study.schema(), result)
        if not isinstance(result, PFDSResult):
            raise make_result_error(result)
        match result:
            case PFDSResult(model, _, n_answering, left_out):
                counts = {"answering": list(n_answering), "left_out": list_left_out(left_out)}
        return {"model": model.to_plain(), "counts": counts}


def build_params(study: Study) -> PFDSParams:
    """Return the parameters that all parties of a PFDS study agree on.

    Keys that have no meaning in the study are None there and keep their defaults.
    """
    settings = study.pfds
    assert settings is not None, "a study of pfds has its table"
    return PFDSParams(
        study.schema(),
        study.privacy.epsilon,
        study.participation.size,
        delta=study.privacy.delta,
        n_holders=settings.n_holders,
        minimum=study.participation.minimum,
        max_colluders=settings.max_colluders,
        variant=study.variant,
        trust="secure-sum" if study.trust == "secure-sum" else "local",
        max_depth=settings.max_depth or PFDSParams.max_depth,
        n_candidates=settings.n_candidates or PFDSParams.n_candidates,
        n_levels=settings.n_levels or PFDSParams.n_levels,
        n_buckets=settings.n_buckets or PFDSParams.n_buckets,
        labelling=settings.labelling or PFDSParams.labelling,
        projection=PFDSParams.projection if settings.projection is None else settings.projection,
        unit="person" if study.unit is Unit.PERSON else "record",
        max_rows=study.max_rows,
    )


MAX_COUNTS = 100_000
"""Most counts of all tables together.

They travel in one message, as do two numbers for each cell in the question of a sum.
"""


def _default_trees(document: dict[str, Any], table: dict[str, Any], variant: str) -> dict[str, Any]:
    """Return the defaults of the paper's trees; empty for plus."""
    if variant == "plus":
        return {}
    features, depth = document.get("feature"), table.get("max_depth")
    n_features = len(features) if isinstance(features, (list, tuple)) else _MAX_PAPER_DEPTH
    # A tree has at least two levels. `_check_trees` reports a study with too few features.
    deepest = max(2, min(_MAX_PAPER_DEPTH, n_features))
    h_max = depth if type(depth) is int and depth >= 2 else deepest
    figures = {"max_depth": deepest, "n_candidates": 10, "labelling": "shared", "projection": True}
    # Levels are counted for the projection only; a numeric label alone has buckets.
    figures |= {} if table.get("projection") is False else {"n_levels": min(4, h_max)}
    return figures | ({"n_buckets": 10} if _has_numeric_label(document) else {})


def _has_numeric_label(document: dict[str, Any]) -> bool:
    label = document.get("label")
    return isinstance(label, dict) and label.get("range") is not None


def _check_keys(study: Study, table: PFDS, members: DeclaredRoster) -> Iterator[StudyProblem]:
    if study.queries is not None:
        yield StudyProblem(
            "SPEC-022",
            ("queries",),
            "[queries] has no meaning for pfds: it releases data, in which everyone may count "
            "freely.",
            "Remove [queries], and count in the release.",
        )
    for key in _TREE_KEYS if study.variant == "plus" else ():
        if getattr(table, key) is not None:
            yield StudyProblem(
                "SPEC-022",
                ("pfds", key),
                f"{key} belongs to the trees of the paper's variant; plus has no trees.",
                f'Remove {key}, or variant = "paper"',
            )
    if table.projection is False and table.n_levels is not None:
        yield StudyProblem(
            "SPEC-022",
            ("pfds", "n_levels"),
            "n_levels has no meaning without the projection, which alone counts levels.",
            "Remove n_levels, or projection = true",
        )
    if study.variant == "paper" and study.label.range is None and table.n_buckets is not None:
        yield StudyProblem(
            "SPEC-022",
            ("pfds", "n_buckets"),
            "n_buckets has a meaning for a numeric label only.",
            "Remove n_buckets.",
        )
    for i, feature in enumerate(study.feature if study.variant == "paper" else ()):
        if feature.bins is not None:
            yield StudyProblem(
                "SPEC-022",
                ("feature", i, "bins"),
                f"{feature.name}: bins have no meaning in the paper's trees, which choose their "
                "own split values.",
                'Remove bins, or variant = "plus"',
            )
    if study.trust == "local":
        yield from check_no_colluders(members)


def _check_numbers(study: Study, table: PFDS, members: DeclaredRoster) -> Iterator[StudyProblem]:
    problems = list(check_member_count(members, is_sum=study.trust == "secure-sum"))
    yield from problems
    if study.trust == "secure-sum" and not problems:
        yield from check_survivor_quorum(members)
    yield from _check_trees(study, table) if study.variant == "paper" else _check_cells(study)


def _check_trees(study: Study, table: PFDS) -> Iterator[StudyProblem]:
    h_max, p, n_features = table.max_depth or 0, table.n_levels or 0, len(study.feature)
    n_candidates = table.n_candidates or 0
    if h_max > n_features:
        yield StudyProblem(
            "SPEC-021",
            ("pfds", "max_depth"),
            f"max_depth = {h_max}, but there {'is' if n_features == 1 else 'are'} "
            f"{format_count(n_features, 'feature')}. "
            "PFDS Algorithm 3: h_max <= |A|.",
            f"max_depth = {n_features}" if n_features > 1 else 'Add a feature, or variant = "plus"',
        )
    elif p > h_max:
        yield StudyProblem(
            "SPEC-021",
            ("pfds", "n_levels"),
            f"n_levels = {p}, but a tree has max_depth = {h_max} levels. PFDS Algorithm 5: p <= "
            "h_T.",
            f"n_levels = {h_max}",
        )
    elif n_candidates * n_features > MAX_SPLITS:
        yield StudyProblem(
            "SPEC-021",
            ("pfds", "n_candidates"),
            f"n_candidates ({n_candidates:,}) x {n_features:,} features = "
            f"{n_candidates * n_features:,} splits of a node; at most {MAX_SPLITS:,} can be "
            "compared.",
            f"n_candidates = {MAX_SPLITS // n_features}",
        )
    elif compute_depth(build_params(study)) < 2:
        yield StudyProblem(
            "SPEC-021",
            ("feature",),
            "A split on any feature makes more leaves than can be counted for each of "
            f"{build_params(study).n_outcomes:,} classes.",
            'Group values, or variant = "plus"',
        )
    for i, feature in enumerate(study.feature):
        if feature.range is not None and feature.missing:
            yield StudyProblem(
                "SPEC-021",
                ("feature", i, "missing"),
                f"{feature.name} is a number that may be missing. In the paper's trees a missing "
                "number is on neither side of a split.",
                'missing = false, if every row has it; or variant = "plus"',
            )


def _check_cells(study: Study) -> Iterator[StudyProblem]:
    params = build_params(study)
    n_counts = params.n_cells * params.n_sides
    if n_counts > MAX_COUNTS:
        yield StudyProblem(
            "SPEC-021",
            ("feature",),
            f"The tables of {format_count(len(study.feature), 'feature')} and the label have "
            f"{n_counts:,} counts; at most {MAX_COUNTS:,} "
            "can travel together.",
            "Use fewer features or bins, or group values.",
        )


def _price_questions(params: PFDSParams) -> Mapping[str, Event]:
    if params.variant == "paper":
        return paper_script.compute_prices(params)
    return (
        {"tables": tables.price_tables(params)}
        if params.trust == "local"
        else SecureSumScript(params).prices
    )


def _describe_tables(params: PFDSParams) -> str:
    if params.trust == "secure-sum":
        return "sums of the tables of all attributes and the label"
    return f"tables of {format_count(tables.choose_n_tables(params), 'attribute')} and the label"


def forecast_pfds(params: PFDSParams) -> list[Forecast]:
    """Return the noise of a cell of a pooled table, or of a leaf of the paper's trees.

    It holds at the declared number of rows, if every holder shares.
    """
    if params.variant == "paper":
        return [_forecast_leaf(params)]
    # No table has fewer cells. Half of their mean separates the sides of the label.
    min_counts = min(params.arities) * params.n_sides
    return [Forecast(_CELL_NOISE, compute_cell_noise(params), useless_from=1 / min_counts / 2)]


def _forecast_leaf(params: PFDSParams) -> Forecast:
    """Return the noise of a count in a leaf, with the records of an average leaf."""
    mechanism = paper_script.make_leaf_mechanism(params)
    assert mechanism is not None, "the epsilon of a study is finite"
    n_rows = params.size / params.n_holders / compute_expected_leaves(params)
    what = (
        "noise on a class count of a leaf, in records (standard deviation); an average "
        f"leaf of a tree of {compute_depth(params)} levels "
        f"holds {f'{n_rows:,.0f}' if n_rows >= 10 else f'{n_rows:.2g}'} records"
    )
    # Half of the mean of the leaf's counts separates its classes.
    return Forecast(
        what, math.sqrt(mechanism.variance()), useless_from=n_rows / params.n_outcomes / 2
    )


def _parse_kind(question: str) -> str:
    return question.partition("/")[0]


def _describe_sent_data(params: PFDSParams) -> str:
    """Return the data that leaves a holder."""
    if params.variant == "paper":
        sizes = (
            f", the number of rows in the nodes of {format_count(n, 'level')}, blurred too"
            if (n := count_projected_levels(params))
            else ""
        )
        return (
            f"a tree of {compute_depth(params)} levels: its split values, drawn at random with a "
            "preference for those that split your rows well, and the counts of classes in its "
            f"leaves, blurred by random noise{sizes}; and made-up rows drawn from these. No row of "
            "your database leaves"
        )
    if params.trust == "local":
        q, k = tables.choose_n_tables(params), len(params.arities)
        n = params.n_sides * sum(sorted(params.arities)[-q:])
        return (
            f"tables of the label and {format_count(q, 'attribute')} of {k}, in all up to "
            f"{format_count(n, 'count')} of your database's rows, each blurred by random noise "
            f"(at most {format_count(n * COUNT_BYTES, 'byte')}). No row leaves"
        )
    script = SecureSumScript(params)
    n = sum(script.compute_size(question) for question in script.questions)
    return (
        f"{format_count(n, 'number')} counted from your database's rows, each hidden by a mask (at "
        f"most {format_count(n * COUNT_BYTES, 'byte')}, plus keys and signatures). Only sums over "
        "the holders that answer can be read, and they contain random noise. No row leaves"
    )


def _describe_recipients(params: PFDSParams) -> str:
    """Return who sees the data that leaves."""
    if params.variant == "paper":
        return "all holders, and every other reader of the release, which may be passed on freely"
    if params.trust == "local":
        return (
            "every reader of the release, which has the tables, and the model and the made-up rows "
            "that follow from them"
        )
    return (
        "the coordinator sees masked numbers and their sums with the noise. Every reader of the "
        "release sees the model and the made-up rows that follow from the sums"
    )


def _list_assumptions(params: PFDSParams) -> tuple[str, ...]:
    """Return the assumptions about others, and the consequence if too many drop out."""
    if params.trust == "local":
        return ()
    n = params.n_holders
    return (
        describe_sum_trust(n, params.max_colluders, "holders", "the readers of the sums"),
        describe_dropout(n, params.minimum, "holders"),
    )


def _list_exclusions(params: PFDSParams) -> tuple[str, ...]:
    """Return the facts that the guarantee of PFDS does not cover."""
    items = [
        "your personal model: it is trained on your own rows and must not be published or shared",
        "that the other holders count correctly: a false count spoils the release and cannot be "
        "detected",
        "how many holders there are and the declared size, which are public",
    ]
    if params.trust == "secure-sum" and params.max_colluders == 0:
        items.insert(
            0,
            "the other holders: each knows its own share of the noise, so the guarantee is weaker "
            "against it; max_colluders = 1 covers this",
        )
    return tuple(items)


def _find_position(handle: StudyHandle, seat: Seat) -> int:
    """Return a holder's position: by its key on the roster, or as assigned by the coordinator."""
    if handle.manifest.roster:
        return handle.find_roster_position(seat.identity)
    if seat.position is None:
        raise LocalProtocolError("PROTO-001", "The holder has not enrolled yet.")
    n_holders = handle.params.n_holders
    if not 0 <= seat.position < n_holders:
        raise RemoteProtocolError(
            "NET-002",
            f"The coordinator assigned position {seat.position} to one of {n_holders} holders.",
            why="Nothing was sent.",
            fix="Ask the analyst, or leave the study: shoal leave",
        )
    return seat.position
