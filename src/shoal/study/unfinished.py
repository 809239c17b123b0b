"""What a draft of ``shoal new --from`` still has of the table that it was made from, and what nobody has written yet."""

from __future__ import annotations

import os
import re

from shoal.study.lines import Lines
from shoal.study.load import parse, read_text
from shoal.study.templates.drafts import MARK, PLACEHOLDERS

FIX = (
    f"Replace each value marked {MARK} by public knowledge and remove the remark; write {' and '.join(PLACEHOLDERS)}, "
    "which participants read before they agree."
)

# A remark is about the value in front of it; a line that is all remark, such as the draft's own explanation, is about none.
_MARKED = re.compile(rf"[ \t]*[^#\s].*#[ \t]*{MARK}")
_SHOWN = 5


def drafts_left(path: str | os.PathLike[str]) -> list[str]:
    """Sentences about what makes a study file a draft still; none where it is finished. They repeat no value.

    Raises
    ------
    SpecError
        There is no study in the file.
    """
    return drafts_in(read_text(path))


def drafts_in(text: str) -> list[str]:
    """Those of a text.

    Examples
    --------
    >>> from shoal.study.templates import study_text
    >>> drafts_in(study_text("anonml"))
    []
    >>> drafts_in(study_text("anonml").replace("# public knowledge", "# READ FROM THE DATA"))
    ['What stands on line 17 was read from the data, perhaps from private rows, and a study is public.']
    """
    study, lines = parse(text), Lines(text)
    marked = [number for number, line in enumerate(text.splitlines(), 1) if _MARKED.match(line)]
    unwritten = [key for key, placeholder in PLACEHOLDERS.items() if getattr(study, key).strip() == placeholder]
    found = [f"What stands on {_on(marked)} was read from the data, perhaps from private rows, and a study is public."] if marked else []
    if unwritten:
        found.append(f"Nobody has written the {' and the '.join(unwritten)} yet ({_on([lines.of((key,)) for key in unwritten])}).")
    return found


def _on(numbers: list[int]) -> str:
    more = f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else ""
    return f"line{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers[:_SHOWN]))}{more}"
