"""The table that is named after the protocol: its parameters, under their public names.

Parameters of a paper that the ``plus`` variant chooses by itself have no default: a study of the ``paper`` variant states them,
any other leaves them out.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from shoal.study.values import Items, Line, Table

Positive = Annotated[float, Field(gt=0, le=1e6)]
Size = Annotated[float, Field(ge=1e-9, le=1e6)]
Small = Annotated[int, Field(ge=1, le=10_000)]

MAX_INSTANCES = 1_000
MAX_DATABASES = 1_000


class AnonML(Table):
    """``[anonml]``: many people, one row each.

    Notes
    -----
    Ref: AnonML §VI-A for k_p, k_h and k_s; §VI-B for classifiers and scores; §VII-D, equation 6, for the paper's accounting.
    """

    n_partitions: Small | None = Field(
        default=None, description="k_p: groups of people that are asked for different features. Variant paper."
    )
    n_subsets: Small | None = Field(default=None, description="k_h: subsets of features that one person is asked for. Variant paper.")
    subset_size: Small | None = Field(default=None, description="k_s: features in a subset. Variant paper.")
    accounting: Literal["plain", "paper"] = Field(
        default="plain",
        description='"plain": epsilon is the sum of all releases. "paper": the total of equation 6; the sum is shown beside it.',
    )
    classifier: Literal["logistic", "tree"] = Field(
        default="logistic", description="What is learned on each table: logistic regression, or a decision tree. Variant paper."
    )
    score: Literal["f1", "auc", "accuracy"] = Field(
        default="f1", description="Cross-validated score of a classifier, its weight in the vote. Variant paper."
    )


class DDML(Table):
    """``[ddml]``: a stream of devices, a few rows each.

    Notes
    -----
    Ref: DDML §III for k, gamma and N_c, §III-E for a falling step; §V for the spam threshold.
    """

    n_instances: Annotated[int, Field(ge=1, le=MAX_INSTANCES)] = Field(default=20, description="k: instances of the model that are kept.")
    learning_rate: Size | None = Field(
        default=None, description="gamma: step of an update; by default from size, epsilon, k and the number of weights."
    )
    batch_size: Small = Field(default=10, description="N_c: most rows that one update reads; a device that has fewer reads them all.")
    clip: Size | None = Field(
        default=None,
        description="L2 norm to which a gradient is clipped (unit weight: the size of each of its parts); by default from the inputs.",
    )
    fraction_bits: Annotated[int, Field(ge=4, le=24)] = Field(
        default=20, description="Weights travel as 32-bit multiples of 2^-fraction_bits."
    )
    merge: Literal["blend", "discard"] = Field(
        default="blend",
        description="How an update enters the instances; by default blend for plus, discard for paper.",
        json_schema_extra={"default": None},
    )
    link: Literal["identity", "logit", "log", "multinomial"] = Field(
        default="logit", description="How scores become predictions; by default as the label asks.", json_schema_extra={"default": None}
    )
    decay: Literal["none", "sqrt"] = Field(
        default="none", description='"sqrt": the step falls with the root of the time that has passed; "none": it stays.'
    )
    averaging: bool = Field(
        default=True,
        description="Whether the model is the average over time, late instances counting more; by default true for plus, false for paper.",
        json_schema_extra={"default": None},
    )
    crosses: Annotated[tuple[Annotated[tuple[Line, Line], Items], ...], Items, Field(max_length=200)] = Field(
        default=(), description="Pairs of features whose products get weights of their own."
    )
    centred: bool = Field(
        default=True,
        description="Whether inputs are moved to lie around zero, by ranges and values alone; by default true for plus, false for paper.",
        json_schema_extra={"default": None},
    )
    admission: Literal["token", "signed", "open"] = Field(
        default="signed",
        description="Who may send an update: a ticket that came with an enrolment, an enrolled key that signs it, or anyone. "
        "The coordinator's HTTP service sees to it; simulations admit everyone.",
    )
    spam_threshold: Positive | None = Field(
        default=None, description="t: how far from the instances, in standard deviations, an update is refused; by default calibrated."
    )


class SDQ(Table):
    """``[sdq]``: some databases, many rows each.

    Notes
    -----
    Ref: SDQ §IV for N and d, Algorithm 2 for the two selected databases.
    """

    n_databases: Annotated[int, Field(ge=2, le=MAX_DATABASES)] = Field(
        description="N: databases on the roster; at least 3 with trust secure-sum."
    )
    learner: Literal["tree", "naive-bayes"] = Field(
        default="tree", description="What is learned: a decision tree, or naive Bayes from one sum (variant plus)."
    )
    depth: Annotated[int, Field(ge=1, le=16)] | None = Field(
        default=None,
        description="d: most attributes on a path of the tree; by default 4 for paper and 8 for plus, which takes fewer where they would "
        "make too many cells.",
    )
    choice: Literal["mpc", "sums"] | None = Field(
        default=None,
        description="How a tree's attributes are chosen: by a joint computation of a committee, or from sums alone. By default mpc where "
        "colluders are sure to be a minority of a committee (variant plus).",
    )
    noise: Literal["all-contribute", "two-selected"] = Field(
        default="all-contribute",
        description="Who adds noise: a share from every database, or two selected ones as in the paper (variant paper).",
    )
    max_colluders: Annotated[int, Field(ge=0, le=MAX_DATABASES - 1)] = Field(
        default=0,
        description="C: databases that may side with the miner; secure-sum only, by default a third, rounded up.",
        json_schema_extra={"default": None},
    )


class PFDS(Table):
    """``[pfds]``: some organisations, many rows each.

    Notes
    -----
    Ref: PFDS Algorithm 3 for h_max and t, Algorithm 5 for p, §3.1 for b, §4 for PFDS(s) and PFDS-.
    """

    n_holders: Small = Field(description="m: organisations that share; 3 to 1,000 with trust secure-sum.")
    max_depth: Annotated[int, Field(ge=2, le=32)] | None = Field(
        default=None,
        description="h_max: levels of a tree, at most as many as features; by default 8, or fewer where there are fewer. Variant paper.",
    )
    n_candidates: Small | None = Field(default=None, description="t: split values tried at a node; by default 10. Variant paper.")
    n_levels: Annotated[int, Field(ge=2, le=32)] | None = Field(
        default=None,
        description="p: levels whose counts are made consistent; by default 4, or max_depth where that is less. Variant paper.",
    )
    n_buckets: Annotated[int, Field(ge=2, le=1_000)] | None = Field(
        default=None, description="b: buckets of a numeric label; by default 10. Variant paper with a numeric label."
    )
    labelling: Literal["shared", "own"] | None = Field(
        default=None,
        description="Whose trees label a holder's made-up rows: those of all, by a vote (default), or its own: PFDS(s). Variant paper.",
    )
    projection: bool | None = Field(
        default=None,
        description="Whether the counts of a tree are made consistent (default); false is PFDS-. Variant paper.",
    )
    max_colluders: Annotated[int, Field(ge=0, le=9_999)] = Field(
        default=0,
        description="C: holders that may side with those who read the sums; secure-sum only, by default a third, rounded up.",
        json_schema_extra={"default": None},
    )
