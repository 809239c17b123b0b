"""The source as parsed text: modules, what they import from each other, and what parameters a function or class of theirs takes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One module of ours, parsed."""

    name: str
    tree: ast.Module

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """Of every node, the one that it is a part of."""
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @cached_property
    def imported(self) -> dict[str, tuple[str, str]]:
        """Name here -> the module that it comes from, and its name there."""
        return {
            alias.asname or alias.name: (node.module, alias.name)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
        }

    @cached_property
    def defined(self) -> dict[str, ast.stmt]:
        """Name -> the class or function of this module, wherever it stands in it; of several the first."""
        found: dict[str, ast.stmt] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, Function | ast.ClassDef):
                found.setdefault(node.name, node)
        return found

    def around(self, node: ast.AST) -> Iterator[Function]:
        """The functions that a node stands in, the innermost first."""
        while node in self.parents:
            node = self.parents[node]
            if isinstance(node, Function):
                yield node


@dataclass(frozen=True)
class Sources:
    """All modules of ours."""

    modules: dict[str, Module] = field(default_factory=dict)

    def home(self, module: Module, name: str) -> tuple[Module, str] | None:
        """The module that defines what a name means in a module, and its name there; None where it is not ours."""
        for _ in range(4):  # a package may hand a name on
            if name in module.defined:
                return module, name
            place = module.imported.get(name)
            if place is None or place[0] not in self.modules:
                return None
            module, name = self.modules[place[0]], place[1]
        return None

    def parameters(self, module: Module, name: str) -> list[str]:
        """The names of the parameters of a function, or of what makes an object of a class; none where it is not ours."""
        found = self.home(module, name)
        if found is None:
            return []
        where, node = found[0], found[0].defined[found[1]]
        if isinstance(node, Function):
            return _names(node)
        assert isinstance(node, ast.ClassDef)
        for part in node.body:
            if isinstance(part, Function) and part.name == "__init__":
                return _names(part)[1:]
        fields = [part.target.id for part in node.body if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)]
        if fields:
            return fields
        return next((names for base in _bases(node) if (names := self.parameters(where, base))), [])

    def kinds(self, module: Module, name: str) -> list[str]:
        """A class and the classes that it descends from, the nearest first; none where it is not ours or no class."""
        found = self.home(module, name)
        if found is None:
            return []
        node = found[0].defined[found[1]]
        if not isinstance(node, ast.ClassDef):
            return []
        return [node.name, *(kind for base in _bases(node) for kind in self.kinds(found[0], base))]


def read_sources(*roots: Path) -> Sources:
    """All modules below some directories; a module is named as it is imported, the directories' own names left out for ``src``."""
    modules = {}
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root if root.name == "src" else root.parent).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            modules[name] = Module(name, ast.parse(path.read_text("utf-8")))
    return Sources(modules)


def _names(function: Function) -> list[str]:
    given = function.args
    return [argument.arg for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs)]


def _bases(node: ast.ClassDef) -> list[str]:
    return [base.id for base in node.bases if isinstance(base, ast.Name)]
