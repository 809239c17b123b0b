"""Which script a study follows."""

from __future__ import annotations

from shoal.protocols.sdq.bayes import BayesScript
from shoal.protocols.sdq.paper import PaperScript
from shoal.protocols.sdq.params import Params
from shoal.protocols.sdq.plus import PlusScript
from shoal.protocols.sdq.ranked import RankedScript
from shoal.protocols.sdq.script import Script


def script_of(params: Params) -> Script:
    """The script of a study, by its variant, its learner and how splits are chosen."""
    if params.variant == "paper":
        return PaperScript(params)
    if params.learner == "naive-bayes":
        return BayesScript(params)
    return PlusScript(params) if params.choice == "mpc" else RankedScript(params)
