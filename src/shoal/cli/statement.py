"""``shoal statement``: a study on one page for those who must sign it off, and as a record for a registry."""

from __future__ import annotations

import json as json_format
from pathlib import Path

from shoal.cli.output import emit
from shoal.cli.report import write_page
from shoal.models.files import write_new
from shoal.names import shell_word, shown
from shoal.report import registry_record, statement_page
from shoal.report.registry import to_fill_in
from shoal.study.load import load
from shoal.study.manifest import Manifest

NAME = "statement.html"


def statement(study: Path, /, *, out: Path | None = None, registry: Path | None = None, json: bool = False) -> None:
    """Write a study on one page, for an ethics board or a data-protection officer to sign.

    Parameters
    ----------
    study
        The study file.
    out
        The page, which prints on A4; without it statement.html beside the study. An earlier page is replaced.
    registry
        Also a record for the registry of deployments of differential privacy, as JSON, into a new file. What only the curator knows is null
        in it.
    json
        Print one JSON object, with the record in it.
    """
    manifest = Manifest(load(study))
    page, record = statement_page(manifest).encode(), registry_record(manifest)
    target = study.parent / NAME if out is None else out
    if registry is not None:
        write_new(registry, (json_format.dumps(record, indent=2, ensure_ascii=False) + "\n").encode())
    try:
        write_page(target, page, [study])
    except BaseException:
        if registry is not None:
            registry.unlink()
        raise
    missing = list(to_fill_in(record))
    lines = [f"wrote     {shown(str(target))}   study {manifest.short}"]
    lines += [] if registry is None else [f"wrote     {shown(str(registry))}", f"fill in   {', '.join(missing)}"]
    data = {
        "statement": str(target),
        "registry": None if registry is None else str(registry),
        "digest": manifest.digest.hex(),
        "record": record,
        "to_fill_in": missing,
    }
    emit(data, "\n".join(lines), json=json, next_command=f"shoal serve {shell_word(study)}")
