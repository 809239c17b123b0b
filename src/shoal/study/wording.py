"""What leaves a participant, who sees it and what no guarantee covers, in words for the label."""

from __future__ import annotations

from shoal.privacy.events import Event
from shoal.study.parts import Release
from shoal.study.price_people import n_weights
from shoal.study.spec import Study

_WEIGHT_BYTES = 4


def leaves(study: Study, releases: tuple[Release, ...]) -> str:
    """What leaves, and that nothing else does."""
    if study.protocol == "anonml":
        n = sum(release.count for release in releases)
        what = "one random-looking answer" if n == 1 else f"{n} random-looking answers"
        return f"{what}; nothing else about you"
    if study.protocol == "ddml":
        n = study.privacy.n_updates
        times = "once" if n == 1 else f"up to {n} times"
        return f"a model of {n_weights(study)} weights, changed by your rows and blurred by noise, {times}; no row"
    if study.trust == "secure-sum":
        return "counts of your rows under a mask; only their sum over all databases can be read, with noise in it; no row"
    if study.protocol == "sdq":
        return "counts of your rows, each blurred by noise; no row"
    if study.variant == "paper":
        return "a tree with noisy counts, and made-up rows drawn from it; no row of yours"
    return "tables of counts of your rows, each count blurred by noise; no row"


def n_bytes(study: Study, releases: tuple[Release, ...]) -> int | None:
    """Bytes of the answers or weights themselves, without their envelope; None where the number depends on the tree."""
    if study.protocol == "ddml":
        return _WEIGHT_BYTES * n_weights(study) * study.privacy.n_updates
    if study.protocol == "anonml":
        return sum(release.count * _report_bytes(release.event) for release in releases)
    return None


def _report_bytes(event: Event) -> int:
    cells = int(event.parameters["cardinality"])
    bits = (cells - 1).bit_length() if event.mechanism == "random-response" else cells
    return -(-bits // 8)


def seen_by(study: Study) -> str:
    """Who sees what leaves."""
    if study.protocol == "anonml":
        return "the coordinator and everyone it shows it to; without your name, delivered anonymously and once per person"
    if study.protocol == "ddml":
        return "the coordinator, and the device that draws your model next"
    if study.trust == "secure-sum":
        return "the coordinator sees masks, and with all participants the sums; everyone sees the model"
    return "all participants, and everyone they show it to"


def not_covered(study: Study) -> tuple[str, ...]:
    """What the guarantee does not speak about."""
    items = ["what the model says about people like you, whether or not you take part", "studies that your ledger does not know of"]
    if study.protocol in ("anonml", "ddml"):
        items.insert(0, "that you enrolled")
    if study.protocol == "ddml":
        items.insert(1, "that your device has rows at all: drawing a model shows it")
    if study.protocol in ("sdq", "pfds"):
        items.insert(0, "that your organisation takes part, and what its records have in common")
        items.insert(1, "rows of the same person at other participants, each of which spends for itself")
    if study.privacy.unit == "record":
        items.insert(0, "several rows of one person together: each is protected by itself")
    return tuple(items)
