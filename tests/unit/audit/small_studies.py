"""Small studies of AnonML that together ask all kinds of questions."""

from __future__ import annotations

from typing import Any

from shoal.protocols.anonml.peer import AnonMLPeer
from shoal.study.spec import Study
from shoal.study.validation import parse_study

BINNED = [
    {"name": "age", "range": [0, 90], "bins": [30], "missing": False},
    {
        "name": "town",
        "values": ["a", "b", "c"],
        "groups": {"near": ["b"], "far": ["a", "c"]},
        "missing": False,
    },
    {"name": "work", "values": ["no", "yes"]},
]
PLACED = [{"name": "pay", "range": [0, 100], "missing": False}, *BINNED[1:]]


def make_study(
    epsilon: float, features: list[dict[str, Any]] = BINNED, size: int = 1000, **more: Any
) -> Study:
    """Return a study with a label of two classes."""
    return parse_study(
        {
            "title": "Naps",
            "purpose": "Who naps?",
            "contact": "a@example.org",
            "protocol": "anonml",
            "label": {"name": "naps", "values": ["no", "yes"]},
            "feature": features,
            "privacy": {"epsilon": epsilon},
            "participation": {"minimum": 100, "size": size},
            **more,
        }
    )


def paper_study(epsilon: float, features: list[dict[str, Any]] = PLACED, **settings: Any) -> Study:
    """Return a study with two tables of each person, and a median of each number without bins."""
    settings = {"n_partitions": 2, "n_subsets": 2, "subset_size": 1, **settings}
    return make_study(epsilon, features, variant="paper", anonml=settings)


STUDIES = {
    "bits": make_study(1.0),
    "bits of the label": make_study(1.2, BINNED[:2]),
    "placed bits": make_study(0.5, PLACED),
    "tables": make_study(2.0, size=20_000),
    "placed tables": make_study(3.5, PLACED),
    "blocks": make_study(7.0, size=20_000),
    "placed blocks": make_study(6.5, PLACED, size=20_000),
    "shuffled": make_study(
        1.0,
        PLACED,
        trust="shuffled",
        privacy={"epsilon": 1.0, "delta": 1e-6},
        participation={"minimum": 900, "size": 1000, "honest_share": 0.5},
    ),
    "three classes": make_study(
        1.3, PLACED, label={"name": "naps", "values": ["no", "some", "all"]}
    ),
    "paper": paper_study(2.0),
    "paper's accounting": paper_study(1.0, accounting="paper"),
    "paper's larger tables": paper_study(0.3, BINNED, n_subsets=1, subset_size=2),
}


class TwiceAsked(AnonMLPeer):
    """A peer that answers two questions with the whole budget each, under different names."""

    def __init__(self, study, script, ticket, columns, label):
        super().__init__(study, script, ticket, columns, label)
        phase, question = self.own_questions["answer"]
        self.own_questions["another answer"] = phase, (question + 2) % len(script.slots)

    def price(self, question):
        return super().price("answer")


class Choosy(AnonMLPeer):
    """A peer that chooses its question by its row.

    Price, ledger and noise of its answer are correct; only the question reveals the row.
    """

    def __init__(self, study, script, ticket, columns, label):
        super().__init__(study, script, ticket, columns, label)
        self.own_questions = {"answer": (0, int(label[0]))}
