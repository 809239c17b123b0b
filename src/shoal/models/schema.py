"""The JSON Schema of an exported model, from the records that read it: ``python -m shoal.models.schema`` prints it."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import Field

from shoal.models.model import KINDS
from shoal.models.reading import Document

# They are the readers' own; a schema made of anything else could differ from what is read.
from shoal.protocols.anonml.model import _Additive, _Vote
from shoal.protocols.ddml.model import _Linear
from shoal.protocols.pfds.model import _Pooled
from shoal.protocols.sdq.model import _Tree

_OWN_WORDS = {
    "_Additive": "Additive",
    "_Vote": "Vote",
    "_Linear": "Linear",
    "_Pooled": "Pooled",
    "_Tree": "Tree",
    "_Classifier": "Classifier",
}


class _Whole(Document):
    model: Annotated[_Additive | _Vote | _Linear | _Tree | _Pooled, Field(discriminator="kind")]  # type: ignore[assignment]


def json_schema() -> dict[str, Any]:
    """The JSON Schema of an exported model; sizes of tables that must fit each other are not in it."""
    schema = _named(_Whole.model_json_schema())
    for name, kind in KINDS.items():
        schema["$defs"][name.capitalize()]["description"] = f"Kind {name}: {kind.words}."
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "shoal model",
        "description": "A model as `shoal model export --to json` writes it. Reading one also enforces what this schema cannot say.",
    }


def _named(part: Any) -> Any:
    """The schema with names for readers: those of Python's records begin with an underscore, and title every field again."""
    if isinstance(part, list):
        return [_named(one) for one in part]
    if isinstance(part, str):
        head, slash, name = part.rpartition("/")
        return f"{head}{slash}{_OWN_WORDS.get(name, name)}"
    if not isinstance(part, dict):
        return part
    kept = {key: value for key, value in part.items() if key != "title" or not isinstance(value, str)}
    return {_OWN_WORDS.get(key, key): _named(value) for key, value in kept.items()}


if __name__ == "__main__":
    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))
