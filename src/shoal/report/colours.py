"""One colour for each protocol, everywhere, and a few more: those of Okabe and Ito, which people with any colour vision tell apart."""

from __future__ import annotations

PROTOCOLS = {"anonml": "#0072b2", "ddml": "#d55e00", "sdq": "#009e73", "pfds": "#cc79a7"}
GREY = "#7a7f87"
"""Of yardsticks, which belong to no protocol."""
CLASSES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
"""Of the classes of a label, each beside the word that it stands for."""


def colour_of(protocol: str) -> str:
    """The colour of a protocol; grey for anything else.

    Examples
    --------
    >>> colour_of("sdq"), colour_of("guessing")
    ('#009e73', '#7a7f87')
    """
    return PROTOCOLS.get(protocol, GREY)


def colour_of_class(position: int) -> str:
    """The colour of a label's class; grey for all beyond those that can be told apart."""
    return CLASSES[position] if position < len(CLASSES) else GREY
