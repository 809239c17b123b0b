"""SDQ studies: constraints, defaults, parameters, prices, wording, peer and aggregator.

`shoal.study.registry` has `SDQProtocol`; audits, simulations and estimators call `build_params`
and `build_script`. Prices come from the script that real peers follow, so that the label, the
ledger and the peer cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

from shoal.messages import codec
from shoal.messages.base import Record, Registry
from shoal.privacy.events import Unit
from shoal.privacy.rounding import format_epsilon
from shoal.protocols.sdq.analysis import compute_exposure, compute_max_counts, count_levels
from shoal.protocols.sdq.messages import MESSAGES
from shoal.protocols.sdq.noise import compute_deviation
from shoal.protocols.sdq.params import (
    MAX_COMMITTEE,
    MAX_SCORES,
    CellTable,
    SDQParams,
    compute_committee_size,
    compute_default_choice,
)
from shoal.protocols.sdq.queries import FreeQuery, QueryRules, SDQQuery, price_query
from shoal.protocols.sdq.script import SDQScript
from shoal.protocols.sdq.variants import make_sdq_script
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
from shoal.study.pricing import COUNT_BYTES, Forecast, PricedRelease, count_max_query_cells
from shoal.study.protocol import (
    COUNT_ERROR,
    DATABASE_UNDO,
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
from shoal.study.settings import SDQ
from shoal.study.spec import Study
from shoal.text import format_count

if TYPE_CHECKING:
    from shoal.protocols.machines import Aggregator, Peer
    from shoal.study.handle import StudyHandle
    from shoal.study.plan import Plan

_DEPTHS = {"paper": 4, "plus": 8}
"""Variant -> default depth of a tree."""
_QUESTIONS = {
    "sizes": "how many records are in each node of a level of the tree",
    "answers": "all counts of a level: of classes in leaves, of values and classes in other nodes",
    "choice": "the choice of the attribute to split on",
    "tables": "tables of every attribute and the label",
    "table": "one table of the chosen attributes and the label",
}
"""Kinds of questions, as scripts name them, in words for the label."""


class SDQProtocol(StudyProtocol):
    """SDQ: databases count rows; sums of the counts, with noise, give a tree or naive Bayes.

    Trust ``local`` of variant ``paper`` is SuLQ, the paper's baseline.
    """

    name = "sdq"
    title = "SDQ"
    holders = Holders("database", "databases", "rows", "helps the miner", "n_databases")
    trust_levels: ClassVar[TrustLevels] = {
        "plus": ("secure-sum",),
        "paper": ("secure-sum", "local"),
    }
    units = ("record", "person")
    needs_table = True
    no_preview_reason = (
        "Your numbers are masked together with those of the other databases, after these have "
        "answered. There is nothing to show before that."
    )
    has_free_counts = True
    retention = (
        "masked numbers of a round, until they are summed; the sums with their noise, until "
        "the study ends; then the model"
    )
    suits = "databases that answer counts"

    @property
    def messages(self) -> Registry:
        """The message types of the protocol."""
        return MESSAGES

    def fill_defaults(self, document: Document, variant: str, trust: str) -> Document:
        """Return the document with colluders, depth and choice in ``[sdq]``."""
        table = document.get("sdq")
        if not isinstance(table, dict):
            return document
        n = read_member_count(table, "n_databases")
        colluders = default_colluders(n, trust)
        defaults = colluders | _default_splits(table, variant, n, **colluders)
        return {**document, "sdq": fill_table(table, defaults)}

    def find_problems(self, study: Study) -> Iterator[StudyProblem]:
        """Yield each condition of SDQ that the study breaks."""
        if study.sdq is not None:
            members = self.declare_roster(study)
            # Numbers are compared only if the keys that they belong to have a meaning.
            yield from list(_check_keys(study, study.sdq, members)) or _check_numbers(
                study, study.sdq, members
            )

    def needs_roster(self, study: Study) -> bool:
        """Return True: each database signs its messages."""
        del study
        return True

    def has_joint_computations(self, study: Study) -> bool:
        """Return whether databases choose splits or draw noise by multi-party computation."""
        settings = study.sdq
        return settings is not None and (
            settings.choice == "mpc" or settings.noise == "two-selected"
        )

    def build_params(self, study: Study) -> SDQParams:
        """Return the parameters that all parties of the study agree on."""
        return build_params(study)

    def build_script(self, params: Any, digest: bytes) -> SDQScript:
        """Return the script that follows from the parameters."""
        del digest
        return make_sdq_script(params)

    def price_releases(self, design: StudyDesign) -> list[PricedRelease]:
        """Return the questions on the most expensive path of the script, and the free counts.

        Notes
        -----
        Nodes of a level hold different records, so that a record pays for one of them. Databases
        hold different records too, and each has a separate ledger.

        Ref: SDQ §IV, Algorithm 3; errata S-09, S-13.

        Privacy
        -------
        Unit record (or person), add-remove. The study's figures decide the adversary: see
        `SDQParams`.
        """
        study, script = design.study, design.script
        releases = [
            PricedRelease(_QUESTIONS[question.partition("/")[0]], script.prices[question], count)
            for question, count in script.costliest_questions
        ]
        free = build_free_queries(study)
        if study.queries is not None and free is not None:
            count_max_query_cells(study, study.queries)
            event = price_query(script.params, free)
            releases.append(PricedRelease("the answer to a free count", event, free.n_queries))
        return releases

    def scale_starter(self, size: int) -> dict[str, tuple[int, str]]:
        """Return nothing: the number of databases does not follow from the number of rows."""
        del size
        return {}

    def forecast(self, design: StudyDesign) -> list[Forecast]:
        """Return the noise on a count of the last table, in records.

        It holds at the declared number of rows, if every database answers.
        """
        script = design.script
        params, (last, _) = script.params, script.costliest_questions[-1]
        # The last question of the paper includes the classes of a leaf, which are one table.
        n_tables = len(params.arities) if last.partition("/")[0] == "tables" else 1
        # A tree with a split, or the table of an attribute, has at least this number of counts.
        # Half of their mean separates the classes.
        min_counts = min(params.arities) * params.n_classes
        return [
            Forecast(
                "noise on a count of the last table, in records (standard deviation)",
                compute_deviation(params, script.prices[last].epsilon, n_tables),
                useless_from=params.size / min_counts / 2,
            )
        ]

    def get_error_measure(self, study: Study) -> ErrorMeasure:
        """Return the noise on a count."""
        del study
        return COUNT_ERROR

    def make_label_text(self, design: StudyDesign) -> LabelText:
        """Return the label's text about counts, sums and databases that collude."""
        study, script = design.study, design.script
        params: SDQParams = script.params
        return LabelText(
            leaves=_describe_sent_data(study, script),
            seen_by=_describe_recipients(study, script),
            not_covered=list_organisation_exclusions(study, _list_exclusions(study, params)),
            rests_on=_list_assumptions(script),
            max_rows=study.max_rows,
            colluders=None
            if params.trust == "local"
            else (params.max_colluders, params.n_databases),
            provided="no database helps the miner" if params.noise == "two-selected" else "",
            undo=DATABASE_UNDO,
        )

    def list_notes(self, plan: Plan) -> list[str]:
        """Return the chance that the noise of two selected databases becomes known."""
        if plan.params.noise == "all-contribute":
            return []
        exposure = _describe_noise_exposure(plan.study, plan.params)
        return [f"{exposure[0].upper()}{exposure[1:]}."]

    def describe_participants(self, study: Study) -> str:
        """Return who takes part, with numbers."""
        return describe_organisations(study, self.count_members(study), "database")

    def make_peer(self, handle: StudyHandle, rows: EncodedRows, seat: Seat) -> Peer[Any]:
        """Return the peer that counts the database's rows."""
        from shoal.protocols.sdq.peer import SDQPeer

        return SDQPeer(
            handle.script,
            handle.make_sum_member(seat.identity, _get_threshold(handle)),
            CellTable.from_columns(handle.params, *rows),
            build_free_queries(handle.study),
        )

    def make_aggregator(self, handle: StudyHandle, hosting: Hosting) -> Aggregator[Any]:
        """Return the aggregator that asks for sums and grows the model.

        Raises
        ------
        SpecError
            ``SDQ-002``: a free count is not allowed by the study. ``MSG-008``: the free counts
            cannot be decoded.
        """
        from shoal.protocols.sdq.aggregator import SDQAggregator

        return SDQAggregator(
            handle.script,
            handle.make_sum_parameters(_get_threshold(handle)),
            hosting.phase_timeout,
            build_free_queries(handle.study),
            decode_queries(hosting.queries),
        )

    def count_phases(self, handle: StudyHandle) -> None:
        """Return None: the number of rounds depends on the tree."""
        del handle

    def count_required(self, handle: StudyHandle) -> int:
        """Return how many databases must answer: all of them without secure sums."""
        return _get_threshold(handle)

    def make_result(self, handle: StudyHandle, result: object) -> Document:
        """Return the model, the number of databases that answered, and the free counts."""
        from shoal.protocols.sdq.aggregator import SDQResult

        del handle
        if not isinstance(result, SDQResult):
            raise make_result_error(result)
        match result:
            case SDQResult(model, _, _, counted, n_answering):
                tables = [[table.to_dict() for table in tables] for tables in counted]
        return {
            "model": model.to_plain(),
            "counts": {"answering": list(n_answering)},
            "queries": tables,
        }


class FreeQueries(Record):
    """The free counts of an SDQ study, as a coordinator stores them."""

    queries: tuple[FreeQuery, ...] = ()


def encode_queries(queries: tuple[SDQQuery, ...]) -> bytes:
    """Encode free counts for a store; without counts no bytes."""
    return codec.dump(FreeQueries(queries=queries)) if queries else b""


def decode_queries(data: bytes) -> tuple[SDQQuery, ...]:
    """Decode free counts; raise ``MSG-008`` if the bytes are not free counts."""
    return codec.load(data, FreeQueries).queries if data else ()


def _get_threshold(handle: StudyHandle) -> int:
    """Return the number of databases that must answer in each round."""
    params: SDQParams = handle.params
    return len(handle.manifest.roster) if params.trust == "local" else params.minimum


def build_params(study: Study) -> SDQParams:
    """Return the parameters that all parties of an SDQ study agree on.

    Keys that have no meaning in the study are None there and keep their defaults.
    """
    settings = study.sdq
    assert settings is not None, "a study of sdq has its table"
    return SDQParams(
        study.schema(),
        study.privacy.epsilon,
        study.participation.size,
        n_databases=settings.n_databases,
        minimum=study.participation.minimum,
        max_colluders=settings.max_colluders,
        variant=study.variant,
        trust="local" if study.trust == "local" else "secure-sum",
        noise=settings.noise,
        choice=settings.choice or SDQParams.choice,
        learner=settings.learner,
        depth=settings.depth or SDQParams.depth,
        unit="person" if study.unit is Unit.PERSON else "record",
        max_rows=study.max_rows,
    )


def build_free_queries(study: Study) -> QueryRules | None:
    """Return the rules for the analyst's free counts; None without ``[queries]``."""
    queries = study.queries
    if queries is None:
        return None
    return QueryRules(queries.features, queries.n_queries, queries.epsilon_release)


def build_script(study: Study) -> SDQScript:
    """Return the script of an SDQ study."""
    return make_sdq_script(build_params(study))


def _default_splits(
    table: dict[str, Any], variant: str, n: int | None, max_colluders: int = 0
) -> dict[str, Any]:
    """Return the depth of a tree and the choice of its attributes; naive Bayes has neither."""
    if table.get("learner") == "naive-bayes":
        return {}
    splits: dict[str, Any] = {"depth": _DEPTHS[variant]}
    c = table.get("max_colluders", max_colluders)
    if variant == "plus" and n and type(c) is int:
        splits["choice"] = compute_default_choice(n, c)
    return splits


def _check_keys(study: Study, table: SDQ, members: DeclaredRoster) -> Iterator[StudyProblem]:
    if table.noise == "two-selected" and (study.variant == "plus" or study.trust == "local"):
        yield StudyProblem(
            "SPEC-022",
            ("sdq", "noise"),
            "Two selected databases add the noise only in the paper's variant with secure sums.",
            'noise = "all-contribute"',
        )
    if table.learner == "naive-bayes" and study.variant == "paper":
        yield StudyProblem(
            "SPEC-022",
            ("sdq", "learner"),
            "The paper learns trees; naive Bayes belongs to plus.",
            'learner = "tree"',
        )
    if table.choice is not None and study.variant == "paper":
        yield StudyProblem(
            "SPEC-022",
            ("sdq", "choice"),
            "choice has no meaning in the paper's variant: the miner chooses by noisy counts.",
            'Remove choice, or variant = "plus"',
        )
    elif table.learner == "naive-bayes":
        for key in ("depth", "choice"):
            if getattr(table, key) is not None:
                yield StudyProblem(
                    "SPEC-022",
                    ("sdq", key),
                    f"{key} has no meaning for naive Bayes: it has no splits.",
                    f'Remove {key}, or learner = "tree"',
                )
    if study.trust == "local":
        yield from check_no_colluders(members)


def _check_numbers(study: Study, table: SDQ, members: DeclaredRoster) -> Iterator[StudyProblem]:
    problems = list(check_member_count(members, is_sum=study.trust == "secure-sum"))
    if problems:
        yield from problems
    elif table.noise == "two-selected":
        yield from _check_selection(table, members.minimum)
    elif study.trust == "secure-sum":
        yield from check_survivor_quorum(members)
        yield from _check_committee(table, len(study.feature))


def _check_committee(table: SDQ, n_features: int) -> Iterator[StudyProblem]:
    n, c = table.n_databases, table.max_colluders
    max_members = min(n, MAX_COMMITTEE)
    if table.choice == "mpc" and compute_committee_size(c) > max_members:
        yield StudyProblem(
            "SPEC-021",
            ("sdq", "choice"),
            'choice = "mpc" needs a committee with an honest majority: '
            f"{compute_committee_size(c)} databases if {c} may collude. "
            + (
                f"There are {n}."
                if n <= MAX_COMMITTEE
                else f"A committee has at most {MAX_COMMITTEE}."
            ),
            f'choice = "sums", or max_colluders = {(max_members - 1) // 2}',
        )
    elif table.choice == "mpc" and n * n_features > MAX_SCORES:
        yield StudyProblem(
            "SPEC-021",
            ("sdq", "choice"),
            f'choice = "mpc" with {n} databases and {n_features:,} features: these are too many '
            "scores for a committee.",
            f'choice = "sums", or at most {MAX_SCORES // n:,} features',
        )


def _check_selection(table: SDQ, minimum: int) -> Iterator[StudyProblem]:
    """Yield problems with the selection of two databases, a joint computation of all of them.

    Without an honest majority colluders would know each selected database.
    """
    n, c = table.n_databases, table.max_colluders
    if n > MAX_COMMITTEE:
        yield StudyProblem(
            "SPEC-021",
            ("sdq", "n_databases"),
            f"n_databases = {n}: all databases select two jointly, which at most "
            f"{MAX_COMMITTEE} can do.",
            f'noise = "all-contribute", or n_databases = {MAX_COMMITTEE}',
        )
    if minimum < n:
        yield StudyProblem(
            "SPEC-021",
            ("participation", "minimum"),
            f"minimum = {minimum}, but with two selected databases all {n} must answer: it is "
            "not known which of them add the noise.",
            f"minimum = {n}",
        )
    if compute_committee_size(c) > n:
        yield StudyProblem(
            "SPEC-021",
            ("sdq", "max_colluders"),
            f"max_colluders = {c} of {n} leaves no honest majority, which the joint selection of "
            "two databases needs.",
            f'max_colluders = {(n - 1) // 2}, or noise = "all-contribute"',
        )


def _describe_sent_data(study: Study, script: SDQScript) -> str:
    """Return the data that leaves a database."""
    params, n = script.params, compute_max_counts(script)
    size = f"at most {format_count(n * COUNT_BYTES, 'byte')}"
    free = _format_free_counts(study)
    tables = f", and a table of counts for each of {free}" if free else ""
    if params.trust == "local":
        return (
            f"up to {format_count(n, 'count')} of your database's rows, each blurred by random "
            f"noise ({size}){tables}. No row leaves"
        )
    scores = (
        ", and scores of attributes as encrypted shares for a committee of "
        f"{compute_committee_size(params.max_colluders)} databases"
        if _has_committee(script)
        else ""
    )
    return (
        f"up to {format_count(n, 'count')} of your database's rows, each hidden by a mask ({size}, "
        f"plus keys and signatures){scores}{tables}. Only sums over all databases can be read, and "
        "they contain random noise. No row leaves"
    )


def _format_free_counts(study: Study) -> str:
    """Return the number of free counts in words; empty without ``[queries]``."""
    return f"up to {format_count(study.queries.n_queries, 'free count')}" if study.queries else ""


def _describe_recipients(study: Study, script: SDQScript) -> str:
    """Return who sees the data that leaves."""
    free = _format_free_counts(study)
    if script.params.trust == "local":
        answers = f", with the answers to {free}" if free else ""
        return f"the miner, and anyone to whom it passes them on{answers}"
    seen = [
        "masked numbers",
        "their sums with the noise",
        *(["the chosen attributes"] if _has_committee(script) else []),
    ]
    seen += [f"the answers to {free}"] if free else []
    return (
        f"the coordinator and the miner see {', '.join(seen[:-1])} and {seen[-1]}. Everyone "
        "sees the model"
    )


def _list_assumptions(script: SDQScript) -> tuple[str, ...]:
    """Return the assumptions about others, and the consequence if too many drop out."""
    params = script.params
    if params.trust == "local":
        return ()
    n, minimum, c = params.n_databases, params.minimum, params.max_colluders
    if params.noise == "two-selected":
        needs = [
            "no selected database reveals the noise that it added",
            f"most of the {n} databases are honest and all of them follow the protocol, for the "
            "selection",
        ]
    else:
        needs = [describe_sum_trust(n, c, "databases", "the miner")]
    also = ""
    if _has_committee(script):
        size = compute_committee_size(c)
        needs.append(
            f"most of a committee of {size} of the answering databases are honest and all of it "
            "follow the protocol, for the choice of attributes. The sums do not rely on this"
        )
        # A committee needs all its members, even if a sum needs fewer databases.
        minimum = max(minimum, size)
        if minimum < n:
            also = "a member of the committee drops out while attributes are chosen"
    return (*needs, describe_dropout(n, minimum, "databases", also))


def _list_exclusions(study: Study, params: SDQParams) -> tuple[str, ...]:
    """Return the facts that the guarantee of SDQ does not cover."""
    items = [
        "that the other databases count correctly: a false count spoils the model and cannot be "
        "detected",
        "the declared size, which is public",
    ]
    if params.noise == "two-selected":
        return _describe_noise_exposure(study, params), *items
    if params.trust == "secure-sum" and params.max_colluders == 0:
        items.insert(
            0,
            "the other databases: each knows its own share of the noise, so the guarantee is "
            "weaker against it; max_colluders = 1 covers this",
        )
    return tuple(items)


def _describe_noise_exposure(study: Study, params: SDQParams) -> str:
    """Return the chance that the noise of two selected databases is known, with figures.

    Notes
    -----
    Ref: errata S-01 to S-04.
    """
    n_queries = study.queries.n_queries if study.queries else 0
    exposure = compute_exposure(params, n_queries)
    what = (
        "the two databases that add the noise know it: no epsilon protects from them or from "
        "anyone to whom they reveal it (errata S-02, S-04)"
    )
    if not exposure.c:
        return what
    times = f"{format_count(count_levels(params), 'level')} of the tree" + (
        f" and each of {format_count(n_queries, 'free count')}" if n_queries else ""
    )
    return (
        f"{what}. Two are selected again for each of {times}. If {exposure.c} of the {exposure.n} "
        f"databases help the miner, then each time both selected ones do with chance "
        f"{_format_percent(exposure.both)}, and the true counts are known; one of them does with "
        f"chance {_format_percent(exposure.one)}, and the remaining noise gives no epsilon. At "
        f"least once both do with chance {_format_percent(exposure.ever_both)}, and one or both "
        f"with chance {_format_percent(exposure.ever)} (errata S-01 to S-03)"
    )


def _has_committee(script: SDQScript) -> bool:
    """Return whether a committee chooses attributes; a single attribute needs no choice."""
    return any(question.startswith("choice/") for question, _ in script.costliest_questions)


def _format_percent(chance: Fraction) -> str:
    return f"{format_epsilon(float(100 * chance), 3)} %"
