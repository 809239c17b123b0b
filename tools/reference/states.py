"""The ledger's states as a picture, drawn from the transition table of the code."""

from __future__ import annotations

from shoal.privacy.ledger.records import ReleaseState
from shoal.privacy.ledger.state import HELD_STATES, SPENT_STATES, TRANSITIONS

_WIDTH, _HEIGHT, _GAP, _EDGE = 130, 56, 60, 20
_LOWER = 190
_FILL = {"held": "#fdf0e1", "spent": "#e3f1f8", "free": "#eef2f4"}
_WORDS = {"held": "cost is held", "spent": "spent for ever", "free": "free again"}


def ledger_states() -> str:
    """Return the picture as SVG: a release from left to right, and its early ends."""
    row = [state for state in TRANSITIONS if state is not ReleaseState.VOIDED]
    place: dict[ReleaseState, tuple[int, int]] = {
        state: (_EDGE + n * (_WIDTH + _GAP), 40) for n, state in enumerate(row)
    }
    place[ReleaseState.VOIDED] = (_EDGE + (_WIDTH + _GAP) // 2, _LOWER)
    width, height = 2 * _EDGE + len(row) * (_WIDTH + _GAP) - _GAP, _LOWER + _HEIGHT + _EDGE
    arrows = [
        _arrow(place[first], place[then])
        for first, reached in TRANSITIONS.items()
        for then in sorted(reached)
    ]
    boxes = [_box(state, *corner) for state, corner in place.items()]
    told = "; ".join(
        f"{first} to {' or '.join(sorted(reached))}"
        for first, reached in TRANSITIONS.items()
        if reached
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            'font-family="system-ui, sans-serif" font-size="15" '
            'role="img" aria-labelledby="t d">',
            '  <title id="t">States of a release in the ledger</title>',
            f'  <desc id="d">{told}.</desc>',
            '  <marker id="a" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
            'markerHeight="7" orient="auto">'
            '<path d="M0 0L10 5L0 10z" fill="#33535f"/></marker>',
            f'  <rect width="{width}" height="{height}" rx="12" fill="#f6f9fb"/>',
            *arrows,
            *boxes,
            "</svg>",
            "",
        ]
    )


def _box(state: ReleaseState, x: int, y: int) -> str:
    kind = "held" if state in HELD_STATES else "spent" if state in SPENT_STATES else "free"
    middle = x + _WIDTH // 2
    return (
        f'  <rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="8" fill="{_FILL[kind]}" '
        'stroke="#33535f"/>'
        f'<text x="{middle}" y="{y + 25}" text-anchor="middle" font-weight="600" '
        f'fill="#123a52">{state}</text>'
        f'<text x="{middle}" y="{y + 44}" text-anchor="middle" font-size="12" '
        f'fill="#33535f">{_WORDS[kind]}</text>'
    )


def _arrow(first: tuple[int, int], then: tuple[int, int]) -> str:
    """Return an arrow: from side to side in the row, from bottom to top if it leaves the row."""
    if first[1] == then[1]:
        start, end = (first[0] + _WIDTH, first[1] + _HEIGHT // 2), (then[0], then[1] + _HEIGHT // 2)
    else:
        start, end = (first[0] + _WIDTH // 2, first[1] + _HEIGHT), (then[0] + _WIDTH // 2, then[1])
    return (
        f'  <path d="M{start[0]} {start[1]}L{end[0]} {end[1]}" stroke="#33535f" '
        'stroke-width="1.5" marker-end="url(#a)"/>'
    )
