"""The model card, and how to make the same run again."""

from __future__ import annotations

from collections.abc import Iterator

from shoal.domain import Numeric
from shoal.names import counted
from shoal.report.details import Mean, Words
from shoal.report.documents import Compared, Run
from shoal.report.figures import exact, guarantee_words, interval, interval_words, name_of
from shoal.report.layout import Section, bullets, terms
from shoal.report.markup import Content, Markup, cut, join, tag
from shoal.report.sections.headline import yardsticks
from shoal.report.views import WHO, RunView
from shoal.study.spec import Study
from shoal.study.typeset import clean

_MOST_FEATURES = 40
_KINDS = {
    "anonml": "scores of cells that add up",
    "ddml": "a linear model",
    "sdq": "a decision tree",
    "pfds": "weights learned from released tables",
}


def card(view: RunView) -> Section:
    """What the model is, what it is for, what it was made of, how well it does, and what it must not be used for."""
    lead = "What a reader of the model should know before using it, and what it must not be used for."
    return Section("card", "Model card", lead, terms(_terms(view)))


def _terms(view: RunView) -> Iterator[tuple[str, Content]]:
    study, run = view.study, view.run
    yield "What it is", f"{_kind(study)}, learned by {view.protocol}; predicts {clean(study.label.name)} ({_values(study)})."
    yield "Intended use", clean(study.purpose)
    yield "Asked by", clean(study.contact)
    yield "Learned from", _training(view)
    yield "Features", _features(study)
    yield "Measures", _measures(view)
    yield "Guarantee", "none: nothing was perturbed" if view.guarantee is None else guarantee_words(view.guarantee)
    yield "Limits", bullets(_limits(view))
    yield "Must not be used", bullets(_refusals(run))


def _kind(study: Study) -> str:
    if study.protocol == "sdq" and study.sdq is not None and study.sdq.learner != "tree":
        return "Naive Bayes"
    if study.protocol == "anonml" and study.variant == "paper":
        return "A vote of small classifiers"
    words = _KINDS[study.protocol]
    return f"{words[0].upper()}{words[1:]}"


def _values(study: Study) -> str:
    if study.label.values is None:
        low, high = study.label.range or (0.0, 0.0)
        return f"a number from {low:g} to {high:g}"
    return "one of " + cut(", ".join(clean(value) for value in study.label.values), 200)


def _training(view: RunView) -> str:
    run = view.run
    who = WHO[run.protocol]
    people = f"{view.point.people:,} simulated {who}, made of {counted(run.rows.asked, 'row')} of one table"
    return f"{people}; {counted(run.rows.unseen, 'row')} were set aside for testing. The study declares {view.study.participation.size:,}."


def _features(study: Study) -> str:
    schema = study.schema()
    named = [clean(name) for name in (*schema.names, *(text.name for text in schema.texts))]
    rest = f" and {len(named) - _MOST_FEATURES} more" if len(named) > _MOST_FEATURES else ""
    ranges = "public ranges and categories" if any(isinstance(feature, Numeric) for feature in schema.features) else "public categories"
    return f"{', '.join(named[:_MOST_FEATURES])}{rest}; with {ranges}."


def _measures(view: RunView) -> Markup:
    parts = [_measure(view, measure, mean) for measure, mean in view.point.scores.items()]
    of = f"; f1 is that of class {view.run.f1_of}" if view.run.f1_of is not None and "f1" in view.point.scores else ""
    return join([part if i == 0 else join(["; ", part]) for i, part in enumerate(parts)] + [f"; all on rows set aside{of}."])


def _measure(view: RunView, measure: str, mean: Mean) -> Markup:
    """A measure with its interval, and with guessing and no privacy beside it."""
    words = interval_words(measure, interval(measure, mean, view.n_runs))
    beside = [join([", ", name, " ", exact(measure, found[measure])]) for _, name, _, found in yardsticks(view.run) if measure in found]
    return join([f"{name_of(measure)} ", exact(measure, mean.value), f" ({words})" if words else "", *beside])


def _limits(view: RunView) -> Iterator[str]:
    yield "It says something about people like those it was learned from, and less about others."
    yield "Its noise hides what is rare: a group with few rows is predicted worse than these measures say."
    if view.run.protocol in ("ddml", "pfds", "anonml"):
        yield "Weights and scores say what goes together in the data, not what causes what."
    if view.guarantee is not None and view.guarantee.unit == "record":
        yield "Several rows of one person are protected one by one, not together."
    if view.guarantee is not None and view.guarantee.unit == "weight":
        yield "Epsilon speaks about one weight of one update, not about the update as a whole."


def _refusals(run: Run) -> Iterator[str]:
    yield "For another purpose than the one above: participants would agree to that one."
    yield "To decide about one person without anybody looking at the case, or to claim who took part."
    if run.simulated:
        yield "For publication: this model was simulated with noise that anyone can repeat from the seed, and protects no row of the table."


def reproduce(document: Run | Compared) -> Section:
    """The command, the digest, the seed and the versions."""
    versions: dict[Words, Words] = document.versions
    body = terms(
        [
            ("Command", tag("code", document.command)),
            ("Study", tag("code", document.digest)),
            ("Seed", f"{document.seed}"),
            ("Runs", f"{document.repeats:,} of each point"),
            ("Versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ]
    )
    lead = "The same command on the same table, with these versions, gives the same numbers."
    return Section("reproduce", "How to make this again", lead, body)
