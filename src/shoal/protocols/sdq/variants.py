"""`make_sdq_script`: choose the learner of a study."""

from __future__ import annotations

from shoal.protocols.sdq.naive_bayes import SDQNaiveBayesScript
from shoal.protocols.sdq.paper import SDQPaperScript
from shoal.protocols.sdq.params import SDQParams
from shoal.protocols.sdq.plus import SDQPlusScript, SDQRankedScript
from shoal.protocols.sdq.script import SDQScript


def make_sdq_script(params: SDQParams) -> SDQScript:
    """Return the script of a study, by its variant, its learner and how splits are chosen."""
    if params.variant == "paper":
        return SDQPaperScript(params)
    if params.learner == "naive-bayes":
        return SDQNaiveBayesScript(params)
    return SDQPlusScript(params) if params.choice == "mpc" else SDQRankedScript(params)
