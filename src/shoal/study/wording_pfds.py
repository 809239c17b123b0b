"""What leaves a holder of PFDS, who sees it, what the guarantee rests on and what it leaves open, in words for the label."""

from __future__ import annotations

from shoal.names import counted
from shoal.protocols.pfds import local
from shoal.protocols.pfds.paper import n_counted
from shoal.protocols.pfds.params import Params
from shoal.protocols.pfds.sums import SumScript
from shoal.protocols.pfds.tree import depth_of
from shoal.study.wording_sdq import COUNT_BYTES, dropped

NOISY_TREES = (
    "The paper's trees are mostly noise at such figures: on census data (Adult) they end at the error of always guessing the most common "
    'class (errata P-01). Ask for fewer levels, more rows or a larger epsilon; variant = "plus" learns more for the same epsilon'
)
"""What a forecast of noise means for the paper's variant."""


def leaves_pfds(params: Params) -> str:
    """What leaves, and that nothing else does."""
    if params.variant == "paper":
        sizes = f"; how many rows are in the nodes of {counted(n, 'level')}, blurred too" if (n := n_counted(params)) else ""
        return (
            f"a tree of {depth_of(params)} levels: its split values, chosen at random by how well they split your rows, and the classes in "
            f"its leaves, counted and blurred by noise{sizes}; and made-up rows drawn from these; no row of your database"
        )
    if params.trust == "local":
        q, k = local.n_tables(params), len(params.arities)
        n = params.n_sides * sum(sorted(params.arities)[-q:])
        return (
            f"tables of the label and {counted(q, 'attribute')} of {k}, in all up to {counted(n, 'count')} of your database's rows, each "
            f"blurred by noise (at most {counted(n * COUNT_BYTES, 'byte')}); no row"
        )
    script = SumScript(params)
    n = sum(script.size(question) for question in script.questions)
    return (
        f"{counted(n, 'number')} counted from your database's rows, each under a mask (at most {counted(n * COUNT_BYTES, 'byte')}, besides "
        "keys and signatures); only sums over the holders that answer can be read, with noise in them; no row"
    )


def seen_by_pfds(params: Params) -> str:
    """Who sees what leaves."""
    if params.variant == "paper":
        return "all holders, and everyone else who reads the release: it is made to be passed on"
    if params.trust == "local":
        return "all who read the release: the tables, and the model and the made-up rows that follow from them"
    return (
        "the coordinator sees masked numbers and their sums with the noise; all who read the release see the model and the made-up rows "
        "that follow from the sums"
    )


def rests_on_pfds(params: Params) -> tuple[str, ...]:
    """What others must do for the guarantee to hold, and what happens if they do not."""
    if params.trust == "local":
        return ()
    n, c = params.n_holders, params.max_colluders
    few = f"at most {c}" if c else "none"
    needs = f"for the sums: that {few} of the {n} holders side with those who read the sums; the coordinator may do what it likes"
    return needs, f"where {dropped(n, params.minimum, 'holders')}, the study ends without a result; what was sent stays spent"


def notes_pfds(params: Params) -> list[str]:
    """What a reader of the price has to know besides."""
    if params.projection or params.variant == "plus":
        return []
    return ["Without the projection no level is counted: half of the study's epsilon, which is for that, is not spent."]


def not_covered_pfds(params: Params) -> tuple[str, ...]:
    """What the guarantee does not speak about, besides what it leaves open everywhere."""
    items = [
        "the model that you train at home: your own rows are in it, and it must not be published or lent out",
        "that another holder counts truly: one that lies spoils the release, and nobody can tell",
        "how many holders there are and the declared size, which are public",
    ]
    if params.trust == "secure-sum" and params.max_colluders == 0:
        items.insert(
            0, "the other holders: each knows its own share of the noise, and less protects you from it; max_colluders = 1 covers that"
        )
    return tuple(items)
