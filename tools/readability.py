"""Measures of how the source reads: sizes, names and prose.

``python -m tools.readability`` prints them as JSON.

`tests/unit/test_structure.py` and `tests/unit/test_language.py` call the functions here.
"""

from __future__ import annotations

import ast
import io
import json
import re
import statistics
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "shoal"

COLUMNS = 100
PROTOCOLS = ("anonml", "ddml", "sdq", "pfds")

UNUSUAL = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"\bwhoever\b",
        r"\bwhose\b",
        r"\bso many\b",
        r"\bheld against\b|\bhold(s|ing)? .{0,40}against\b",
        r"\banew\b",
        r"\ball the same\b",
        r"\bnobody\b",
        r"\b(is|are|was|were|be) told\b|\btells?\b",
        r"\bstands?\b|\bstood\b",
        r"\bat once\b",
        r"\b(comes?|came|come) (of|to)\b",
        r"\bby (itself|himself|herself|themselves)\b",
        r"\bof (its|their|his|one's|our) own\b",
        r"\bwhere (nothing|none|nobody|there)\b",
        r"\bas (many|much|long|often|far) as\b",
        r"\bgoes? on\b|\bgo on\b|\bwent on\b",
        r"\bmeanwhile\b",
        r"\bbeforehand\b",
        r"\bbesides?\b",
    )
)
"""The nineteen turns of phrase that are counted."""

_PARTICIPLE = re.compile(
    r"(ed|drawn|told|kept|held|sent|shown|known|made|taken|left|said|heard)$|_of$"
)
_VERBS = re.compile(
    r"("
    r"accept|add|apply|ask|begin|bind|build|call|cast|check|choose|clean|clip|close|"
    r"collect|combine|compare|compile|compose|compute|connect|convert|copy|count|"
    r"create|cut|decode|decrypt|delete|deliver|derive|describe|draw|drop|dump|emit|"
    r"encode|encrypt|end|enrol|ensure|escape|estimate|evaluate|expand|export|extract|"
    r"fetch|fill|filter|find|finish|fit|flush|format|forward|get|give|handle|has|hash|"
    r"import|infer|init|insert|install|is|issue|iterate|join|keep|label|learn|link|"
    r"list|load|locate|log|look|lower|make|map|mark|mask|match|measure|merge|mint|"
    r"move|name|normalise|observe|obtain|open|pack|parse|pick|place|plan|poll|predict|"
    r"prepare|price|print|process|project|prove|publish|push|put|raise|randomise|"
    r"range|rank|read|receive|record|recover|reduce|refuse|register|release|remove|"
    r"render|replace|report|request|require|reserve|resolve|restore|return|review|"
    r"round|run|sample|save|score|seal|search|select|send|serve|set|share|show|"
    r"shuffle|sign|simulate|size|skip|sort|split|start|stop|store|sum|summarise|take|"
    r"tally|test|to|train|transform|translate|try|unmask|unpack|unseal|update|use|"
    r"validate|verify|wait|walk|warn|watch|weigh|wrap|write"
    r")(_|$)"
)


@dataclass(frozen=True)
class Module:
    """One source file, read and parsed once."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        """Path below the root of the repository."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def lines(self) -> list[str]:
        """Lines of the file."""
        return self.text.splitlines()


def read_modules(folder: Path = SOURCE) -> list[Module]:
    """Read all Python files below a folder."""
    paths = sorted(folder.rglob("*.py"))
    texts = [path.read_text("utf-8") for path in paths]
    return [Module(path, text, ast.parse(text)) for path, text in zip(paths, texts, strict=True)]


def find_docstrings(module: Module) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each docstring, attribute docstrings included."""
    for node in ast.walk(module.tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.lineno, node.value.value


def find_comments(module: Module) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each comment."""
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")


def find_unusual_phrases(module: Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the words of each unusual phrase in docstrings and comments."""
    for line, text in (*find_docstrings(module), *find_comments(module)):
        for pattern in UNUSUAL:
            for match in pattern.finditer(text):
                yield line + text[: match.start()].count("\n"), match.group(0)


def find_classes(modules: list[Module]) -> dict[str, list[str]]:
    """Return where each class name is defined; leading underscores do not count."""
    found = defaultdict(list)
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                found[node.name.lstrip("_")].append(module.name)
    return dict(found)


def find_functions(modules: list[Module]) -> list[str]:
    """Return the names of all functions and methods except dunder methods."""
    return [
        node.name.lstrip("_")
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and not node.name.startswith("__")
    ]


def find_prefix_families(modules: list[Module]) -> dict[str, list[str]]:
    """Return groups of three or more modules of one folder whose names begin with the same word."""
    found = defaultdict(list)
    for module in modules:
        if module.path.stem != "__init__":
            found[f"{module.path.parent}/{module.path.stem.split('_')[0]}"].append(module.name)
    return {key: names for key, names in found.items() if len(names) >= 3}


def knows_protocol(module: Module) -> bool:
    """Return whether a file belongs to one protocol by its path."""
    return any(protocol in module.name for protocol in PROTOCOLS)


def find_protocol_literals(module: Module) -> list[int]:
    """Return the lines with a protocol's name as a string literal."""
    return [
        node.lineno
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Constant) and node.value in PROTOCOLS
    ]


def find_protocol_comparisons(module: Module) -> list[int]:
    """Return the lines that compare something with a protocol's name."""
    return [
        node.lineno
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Compare)
        and any(
            isinstance(part, ast.Constant) and part.value in PROTOCOLS for part in ast.walk(node)
        )
    ]


def _count_import_lines(module: Module) -> int:
    return sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in module.tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
    )


def _count_importers(modules: list[Module]) -> Counter[str]:
    """Return by how many other modules each module is imported."""
    names = {
        ".".join(module.path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        )
        for module in modules
    }
    importers: dict[str, set[str]] = defaultdict(set)
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    importers[full if full in names else node.module].add(module.name)
    return Counter({name: len(found) for name, found in importers.items() if name in names})


def _count_d401() -> int:
    ruff = Path(sys.executable).with_name("ruff")
    command = [str(ruff), "check", "--isolated", "--select", "D401"]
    command += ["--output-format", "json", str(SOURCE)]
    return len(json.loads(subprocess.run(command, capture_output=True, check=False).stdout))


def _begins_with_question_word(text: str) -> bool:
    return bool(re.match(r"(what|whether|how|who|where|why|which)\b", text, re.IGNORECASE))


def measure() -> dict[str, float]:
    """Return the figures of the redesign's first table, and the sizes."""
    modules = read_modules()
    functions, classes = find_functions(modules), find_classes(modules)
    n_lines = sum(len(module.lines) for module in modules)
    prose = [
        text for module in modules for _, text in (*find_docstrings(module), *find_comments(module))
    ]
    n_words = sum(len(re.findall(r"[A-Za-z']+", text)) for text in prose)
    n_phrases = sum(len(list(find_unusual_phrases(module))) for module in modules)
    outside = [module for module in modules if not knows_protocol(module)]
    function_docs = [
        ast.get_docstring(node)
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    families = find_prefix_families(modules)
    return {
        "files": len(modules),
        "lines": n_lines,
        "median_lines_of_files_with_content": statistics.median(
            len(module.lines) for module in modules if len(module.lines) > 3
        ),
        "largest_file_lines": max(len(module.lines) for module in modules),
        "lines_over_100_columns_percent": round(
            100 * sum(len(line) > COLUMNS for module in modules for line in module.lines) / n_lines,
            2,
        ),
        "import_lines_percent": round(100 * sum(map(_count_import_lines, modules)) / n_lines, 1),
        "modules_imported_by_one_other": sum(n == 1 for n in _count_importers(modules).values()),
        "functions_named_by_a_verb_percent": round(
            100 * sum(bool(_VERBS.match(name)) for name in functions) / len(functions), 1
        ),
        "functions_named_by_participle_or_of_percent": round(
            100 * sum(bool(_PARTICIPLE.search(name)) for name in functions) / len(functions), 1
        ),
        "docstrings_not_imperative_d401": _count_d401(),
        "function_docstrings_that_begin_with_a_question_word": sum(
            _begins_with_question_word(text) for text in function_docs if text
        ),
        "unusual_phrases_per_10000_words": round(10_000 * n_phrases / n_words),
        "class_names": len(classes),
        "class_names_defined_more_than_once": sum(len(found) > 1 for found in classes.values()),
        "prefix_families": len(families),
        "files_in_prefix_families": sum(map(len, families.values())),
        "protocol_comparisons_elsewhere": sum(
            len(find_protocol_comparisons(module)) for module in outside
        ),
        "protocol_literals_elsewhere": sum(
            len(find_protocol_literals(module)) for module in outside
        ),
        "files_with_protocol_literals_elsewhere": sum(
            bool(find_protocol_literals(module)) for module in outside
        ),
        "readme_lines": len((ROOT / "README.md").read_text("utf-8").splitlines()),
    }


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
