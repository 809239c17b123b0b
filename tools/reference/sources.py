"""The source as parsed text: modules, their imports, and parameters of their functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One parsed module of shoal."""

    name: str
    tree: ast.Module

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """The parent of every node."""
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @cached_property
    def imported(self) -> dict[str, tuple[str, str]]:
        """The source module and original name of each imported name."""
        return {
            alias.asname or alias.name: (node.module, alias.name)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
        }

    @cached_property
    def defined(self) -> dict[str, ast.stmt]:
        """The class or function of each name defined in this module; of several the first."""
        found: dict[str, ast.stmt] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, Function | ast.ClassDef):
                found.setdefault(node.name, node)
        return found

    def around(self, node: ast.AST) -> Iterator[Function]:
        """Return the functions around a node, the innermost first."""
        while node in self.parents:
            node = self.parents[node]
            if isinstance(node, Function):
                yield node


@dataclass(frozen=True)
class Sources:
    """All modules of shoal."""

    modules: dict[str, Module] = field(default_factory=dict)

    def home(self, module: Module, name: str) -> tuple[Module, str] | None:
        """Return the module that defines a name, and its name there; None for other names."""
        for _ in range(4):  # a package may hand a name on
            if name in module.defined:
                return module, name
            place = module.imported.get(name)
            if place is None or place[0] not in self.modules:
                return None
            module, name = self.modules[place[0]], place[1]
        return None

    def parameters(self, module: Module, name: str) -> list[str]:
        """Return the parameter names of a function or constructor; none if it is not ours."""
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
        fields = [
            part.target.id
            for part in node.body
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
        ]
        if fields:
            return fields
        return next((names for base in _bases(node) if (names := self.parameters(where, base))), [])

    def kinds(self, module: Module, name: str) -> list[str]:
        """Return a class and its base classes, the nearest first; none for other names."""
        found = self.home(module, name)
        if found is None:
            return []
        node = found[0].defined[found[1]]
        if not isinstance(node, ast.ClassDef):
            return []
        return [node.name, *(kind for base in _bases(node) for kind in self.kinds(found[0], base))]


def read_sources(*roots: Path) -> Sources:
    """Return all modules below some directories, by import name.

    The names of the directories are left out for ``src``.
    """
    modules = {}
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            parts = (
                path.relative_to(root if root.name == "src" else root.parent).with_suffix("").parts
            )
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            modules[name] = Module(name, ast.parse(path.read_text("utf-8")))
    return Sources(modules)


def _names(function: Function) -> list[str]:
    given = function.args
    return [argument.arg for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs)]


def _bases(node: ast.ClassDef) -> list[str]:
    return [base.id for base in node.bases if isinstance(base, ast.Name)]
