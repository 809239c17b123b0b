"""No cost is under-counted: grains, sums, compositions and labels.

Releases and hostile text are generated.
"""

from __future__ import annotations

import html
import itertools
import json
import math
import re
from decimal import Decimal
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.privacy.accountant import (
    compose_sequential,
    compose_tightest,
    compose_zcdp,
)
from shoal.privacy.amplification import _make_clone_distribution, amplify
from shoal.privacy.events import Event, Relation, Scope, Unit
from shoal.privacy.rounding import (
    float_from_grains,
    format_epsilon,
    format_epsilon_down,
    from_grains,
    grains_down,
    grains_up,
    sum_up,
)
from shoal.study.label import (
    COLUMNS,
    AmplifiedGuarantee,
    BudgetLine,
    PricedRelease,
    Statement,
    clean_text,
    display_width,
)

budgets = st.floats(0, 1e9, allow_nan=False)
epsilons = st.floats(1e-6, 16.0)
deltas = st.sampled_from([0.0, 1e-12, 1e-9, 1e-6, 1e-3])
scopes = st.builds(
    Scope,
    st.sampled_from(Unit),
    st.sampled_from(Relation),
    st.sampled_from(["everyone", "the miner", "the channel"]),
)
words = st.text(st.characters(codec=None), max_size=40) | st.text(
    "<>&\"'\u202e\x1b│\n a", max_size=30
)


@st.composite
def releases(draw: st.DrawFn, scope: Scope | None = None) -> list[Event]:
    where = draw(scopes) if scope is None else scope
    prices = draw(st.lists(st.tuples(epsilons, deltas), min_size=1, max_size=8))
    return [Event("random-response", {}, where, epsilon, delta) for epsilon, delta in prices]


@given(budgets)
def test_grains_bracket_decimal_value(x):
    exact = Fraction(repr(x)) * 10**12
    assert exact <= grains_up(x) < exact + 1
    assert exact - 1 < grains_down(x) <= exact
    assert grains_up(float_from_grains(grains_up(x))) >= grains_up(x)
    assert Fraction(from_grains(grains_up(x))) * 10**12 == grains_up(x)


@given(st.floats(0, allow_nan=False, allow_infinity=False), st.integers(1, 12))
def test_format_epsilon_brackets_value(x, digits):
    up, down = Decimal(format_epsilon(x, digits)), Decimal(format_epsilon_down(x, digits))
    assert down <= Decimal(repr(x)) <= up
    assert up - down <= Decimal(repr(x)) * Decimal(10) ** (1 - digits)
    assert not re.search(r"0{6,}[1-9]\d*$", format_epsilon(x, 4).split(".")[-1]), "float noise"


@given(releases())
def test_sequential_composition_is_never_under_counted(events):
    loss = compose_sequential(events)
    assert Fraction(repr(loss.epsilon)) >= sum(Fraction(repr(event.epsilon)) for event in events)
    assert loss.epsilon <= math.fsum(event.epsilon for event in events) * (1 + 1e-12) + 1e-11
    assert Fraction(repr(loss.delta)) >= sum(Fraction(repr(event.delta)) for event in events)
    assert loss.delta == sum_up(event.delta for event in events)


@given(releases(), st.sampled_from([1e-8, 1e-5, 1e-2]))
def test_tightest_composition_is_between_parts_and_plain_sum(events, delta):
    plain = compose_sequential(events)
    if plain.delta <= delta:
        found = compose_tightest(events, delta)
        assert found.epsilon <= plain.epsilon
        assert found.delta <= delta
        # One of the releases alone, at the same delta, by the curve of randomised response: delta =
        # (e^eps - e^found) / (e^eps + 1).
        worst = max(event.epsilon for event in events)
        if found.epsilon < worst:
            assert (math.exp(worst) - math.exp(found.epsilon)) / (math.exp(worst) + 1) <= delta * (
                1 + 1e-9
            )


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from([0.1, 0.25, 0.5, 1.0]), min_size=1, max_size=10),
    st.sampled_from([1e-6, 1e-3, 0.05]),
)
def test_zcdp_composition_covers_composed_randomized_response(chosen, delta):
    scope = Scope(Unit.PERSON, Relation.REPLACE, "everyone")
    found = compose_zcdp(
        [Event("random-response", {}, scope, epsilon) for epsilon in chosen], delta
    ).epsilon
    exact = 0.0
    for signs in itertools.product((1, -1), repeat=len(chosen)):
        loss = math.fsum(sign * epsilon for sign, epsilon in zip(signs, chosen, strict=True))
        chance = math.prod(
            1 / (1 + math.exp(-sign * epsilon)) for sign, epsilon in zip(signs, chosen, strict=True)
        )
        exact += chance * max(0.0, -math.expm1(found - loss))
    assert exact <= delta


@settings(max_examples=15, deadline=None)
@given(st.floats(0.01, 8.0), st.integers(1, 20_000), st.sampled_from([1e-9, 1e-6, 1e-3]))
def test_amplification_satisfies_its_delta(epsilon_local, n, delta):
    epsilon = amplify(epsilon_local, n, delta)
    assert 0 < epsilon <= epsilon_local
    assert _make_clone_distribution(epsilon_local, n).delta_at(epsilon) <= delta


@settings(max_examples=30, deadline=None)
@given(
    scopes.flatmap(
        lambda scope: st.lists(
            st.tuples(words, releases(scope), st.integers(1, 50)), min_size=1, max_size=4
        )
    )
)
def test_every_view_prints_at_least_the_spent_epsilon(parts):
    listed = tuple(PricedRelease(name, events[0], count) for name, events, count in parts)
    total = sum(release.count * Fraction(repr(release.event.epsilon)) for release in listed)
    loss = compose_sequential([release.event for release in listed for _ in range(release.count)])
    text = dict.fromkeys(
        ("title", "purpose", "contact", "protocol", "trust", "leaves", "seen_by"), "words"
    )
    scope = listed[0].event.scope
    label = Statement(**text, scope=scope, epsilon=loss.epsilon, delta=loss.delta, releases=listed)
    shown = [re.search(r"Guarantee\s+epsilon ([0-9.e+-]+), delta ([0-9.e+-]+)", str(label))]
    shown.append(re.search(r">epsilon ([0-9.e+-]+), delta ([0-9.e+-]+)", label.to_html()))
    for found in shown:
        assert Fraction(found[1]) >= total
        assert Fraction(found[2]) >= Fraction(repr(loss.delta))
    data = json.loads(json.dumps(label.to_dict()))
    assert Fraction(repr(data["epsilon"])) >= total
    assert Fraction(repr(data["plain_sum"])) >= total


@settings(max_examples=50, deadline=None)
@given(st.lists(words, min_size=12, max_size=12), st.booleans(), scopes)
def test_hostile_text_cannot_break_views(texts, simulated, scope):
    names = (
        "title",
        "purpose",
        "contact",
        "protocol",
        "trust",
        "leaves",
        "seen_by",
        "digest",
        "how",
        "undo",
    )
    where = Scope(scope.unit, scope.relation, texts[10])
    label = Statement(
        **dict(zip(names, texts, strict=False)),
        scope=where,
        epsilon=1.0,
        releases=(PricedRelease(texts[11], Event(texts[0], {}, where, 1.0)),),
        shuffled=AmplifiedGuarantee(100, 0.5, 1e-6),
        budget=BudgetLine(4.0, 1.0, 2.0, texts[1]),
        not_covered=tuple(texts[:3]),
        simulated=simulated,
    )
    for line in str(label).splitlines():
        assert display_width(line) == COLUMNS
        assert line.isprintable()
    page = label.to_html()
    assert set(re.findall(r"<\s*/?\s*([^\s>/]*)", page)) == {
        "table",
        "caption",
        "tbody",
        "tr",
        "th",
        "td",
        "br",
    }
    assert html.escape(label.title) in page
    assert (
        str(label).encode()
        and page.encode()
        and json.dumps(label.to_dict(), ensure_ascii=False, default=str)
    )


@given(words)
def test_cleaned_text_is_idempotent_and_printable(text):
    cleaned = clean_text(text)
    assert clean_text(cleaned) == cleaned
    assert cleaned == "" or cleaned.isprintable()
