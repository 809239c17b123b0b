"""Sentences of errors, read from the source: what, why and fix for each code.

Values are shown as «words». An error is made by a call that has a code among its arguments, such as
``UsageError("CODE", f"...", fix="...")``. Texts that are composed before the call are followed
through assignments of the same function, constants of the module, and the arguments of calls of a
helper in the same module. A text that cannot be followed is left out, never guessed.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tools.reference.sources import Function, Module, Sources

CODE = re.compile(r"[A-Z]+-\d{3}")
MAX_SENTENCES = 12
"""Largest number of forms of a text; with more of them a placeholder is shown."""

_OTHER = ("min", "max", "sum", "next")
"""Functions that do not return their argument in another form."""


@dataclass(frozen=True, kw_only=True)
class Saying:
    """The sentences of an error in one place of the source, with all forms of each part."""

    code: str
    module: str
    made_by: str
    status: int | None
    what: tuple[str, ...]
    why: tuple[str, ...]
    fix: tuple[str, ...]


def sayings(sources: Sources) -> Iterator[Saying]:
    """Return all sentences of the source, by module and position."""
    for module in sources.modules.values():
        calls = [node for node in ast.walk(module.tree) if isinstance(node, ast.Call)]
        for call in sorted(calls, key=lambda call: (call.lineno, call.col_offset)):
            if isinstance(call.func, ast.Name):
                yield from _of_call(sources, module, call, call.func.id)


def _of_call(sources: Sources, module: Module, call: ast.Call, made_by: str) -> Iterator[Saying]:
    names = sources.parameters(module, made_by)
    if "code" not in names:
        return
    given = dict(zip(names, call.args, strict=False)) | {
        word.arg: word.value for word in call.keywords if word.arg
    }
    reader = _Reader(module)
    for code in reader.texts(given["code"]) if "code" in given else ():
        if CODE.fullmatch(code):
            parts = {
                part: tuple(reader.texts(given[part])) if part in given else ()
                for part in ("what", "why", "fix")
            }
            status = given.get("status")
            number = (
                status.value
                if isinstance(status, ast.Constant) and isinstance(status.value, int)
                else None
            )
            yield Saying(code=code, module=module.name, made_by=made_by, status=number, **parts)


@dataclass(frozen=True)
class _Reader:
    module: Module

    def texts(self, node: ast.expr, depth: int = 0) -> list[str]:
        """Return all texts that an expression may be; none if they cannot be determined."""
        if depth > 6:
            return []
        found: list[str] = []
        match node:
            case ast.Constant(value=str() as text):
                found = [text]
            case ast.JoinedStr():
                found = self._joined([self._part(part, depth) for part in node.values])
            case ast.BinOp(op=ast.Add()):
                left, right = self.texts(node.left, depth + 1), self.texts(node.right, depth + 1)
                found = (
                    self._joined([left or ["«value»"], right or ["«value»"]])
                    if left or right
                    else []
                )
            case ast.IfExp():
                found = self.texts(node.body, depth + 1) + self.texts(node.orelse, depth + 1)
            case ast.BoolOp(op=ast.Or()):
                found = [text for value in node.values for text in self.texts(value, depth + 1)]
            case ast.Subscript(value=ast.Name() as name):
                found = self._of_table(name, depth)
            case ast.Name():
                found = self._of_name(node, depth)
        found = list(dict.fromkeys(found))
        return found if len(found) <= MAX_SENTENCES else []

    def _part(self, part: ast.expr, depth: int) -> list[str]:
        """Return a part of an f-string: text, or a word for a value."""
        if isinstance(part, ast.Constant):
            return [str(part.value)]
        assert isinstance(part, ast.FormattedValue)
        inner = part.value
        if isinstance(inner, ast.IfExp | ast.BinOp | ast.Subscript) or (
            isinstance(inner, ast.Name) and inner.id.lstrip("_").isupper()
        ):
            forms = self.texts(inner, depth + 1)
            if set(forms) == {"s", ""}:
                return ["s"]
            if forms:
                return forms
        if (
            isinstance(inner, ast.Name)
            and (forms := self.texts(inner, depth + 1))
            and len(forms) <= 3
        ):
            return forms
        return [_placeholder(inner)]

    def _joined(self, parts: list[list[str]]) -> list[str]:
        if (
            len(list(itertools.islice(itertools.product(*parts), MAX_SENTENCES + 1)))
            > MAX_SENTENCES
        ):
            parts = [part if len(part) == 1 else ["«value»"] for part in parts]
        return ["".join(form) for form in itertools.product(*parts)]

    def _of_name(self, name: ast.Name, depth: int) -> list[str]:
        values = _reaching(self.module, name, name.id)
        if values:
            return [text for value in values for text in self.texts(value, depth + 1)]
        for function in self.module.around(name):
            given = [
                argument.arg
                for argument in (
                    *function.args.posonlyargs,
                    *function.args.args,
                    *function.args.kwonlyargs,
                )
            ]
            if name.id in given:
                return [
                    text
                    for value in self._given_to(function, name.id, given)
                    for text in self.texts(value, depth + 1)
                ]
        return [text for value in self._constants(name.id) for text in self.texts(value, depth + 1)]

    def _constants(self, name: str) -> list[ast.expr]:
        """Return the values of a name of the module."""
        return [
            value
            for statement in self.module.tree.body
            for value in _set_by(self.module, statement, name)[0]
        ]

    def _given_to(self, function: Function, parameter: str, names: list[str]) -> Iterator[ast.expr]:
        """Return the arguments for a parameter of a function, and its default.

        Only callers in the same module are read.
        """
        is_method = names[0] in ("self", "cls")
        for node in ast.walk(self.module.tree):
            if isinstance(node, ast.Call) and self._find_callee(node.func) == function.name:
                given = dict(zip(names[is_method:], node.args, strict=False)) | {
                    word.arg: word.value for word in node.keywords if word.arg
                }
                if parameter in given:
                    yield given[parameter]

    def _find_callee(self, function: ast.expr) -> str:
        """Return the name of the called function, if it is of this module."""
        match function:
            case ast.Name(id=name):
                return name
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if (
                owner in ("self", "cls") or owner in self.module.defined
            ):
                return name
        return ""

    def _of_table(self, name: ast.Name, depth: int) -> list[str]:
        """Return all texts of a constant dictionary of the module."""
        for value in self._constants(name.id):
            if isinstance(value, ast.Dict):
                return [text for part in value.values for text in self.texts(part, depth + 1)]
        return []


def _reaching(module: Module, use: ast.AST, name: str) -> list[ast.expr]:
    """Return the values that a name may have where it is used.

    They come from the statements before it in its block, then in the blocks around it.
    """
    found: list[ast.expr] = []
    node = use
    while node in module.parents and not isinstance(node, Function):
        parent = module.parents[node]
        blocks = [
            block
            for _, block in ast.iter_fields(parent)
            if isinstance(block, list) and node in block
        ]
        for statement in reversed(
            [part for block in blocks for part in block[: block.index(node)]]
        ):
            values, is_sure = _set_by(module, statement, name)
            found += values
            if is_sure:
                return found
        node = parent
    return found


def _set_by(module: Module, statement: ast.AST, name: str) -> tuple[list[ast.expr], bool]:
    """Return the values that a statement may give a name, and whether it always does."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
            return [value], True
        case ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value) if target == name:
            return [value], True
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
            pairs = zip(targets, values, strict=True)
            set_to = [
                value
                for target, value in pairs
                if isinstance(target, ast.Name) and target.id == name
            ]
            return set_to, bool(set_to)
        case ast.AugAssign(target=ast.Name(id=target), value=more) if target == name:
            return [
                ast.BinOp(before, ast.Add(), more) for before in _reaching(module, statement, name)
            ], True
        case ast.If(body=body, orelse=orelse):
            (first, is_first), (second, is_second) = (
                _set_by_all(module, block, name) for block in (body, orelse)
            )
            return first + second, is_first and is_second
        case ast.With(body=body):
            return _set_by_all(module, body, name)
        case ast.For() | ast.While() | ast.Try() | ast.Match():
            parts = [
                part for part in ast.walk(statement) if isinstance(part, ast.Assign | ast.AnnAssign)
            ]
            return [value for part in parts for value in _set_by(module, part, name)[0]], False
    return [], False


def _set_by_all(module: Module, block: list[ast.stmt], name: str) -> tuple[list[ast.expr], bool]:
    found: list[ast.expr] = []
    for statement in reversed(block):
        values, is_sure = _set_by(module, statement, name)
        found += values
        if is_sure:
            return found, True
    return found, bool(block) and isinstance(block[-1], ast.Return | ast.Raise | ast.Continue)


def _placeholder(node: ast.expr) -> str:
    """Return a word for a value: its name, if that is informative.

    Examples
    --------
    >>> print(
    ...     _placeholder(ast.parse("shown(str(self._path))", mode="eval").body),
    ...     _placeholder(ast.parse("n + 1", mode="eval").body),
    ... )
    «path» «value»
    """
    match node:
        case ast.Call(
            func=ast.Name(id="format_count"), args=[_, ast.Constant(value=str() as noun)]
        ):
            return f"«n» {noun}s"
        case ast.Call(func=ast.Name(id="len")):
            return "«n»"
        case ast.Call(func=ast.Name(id="describe_rows")):
            return "«rows» are"
        case ast.Call(func=ast.Name(id=name), args=[inner, *_]) if name not in _OTHER:
            return _placeholder(inner)
        case ast.Call(func=ast.Attribute(value=inner)) | ast.Subscript(value=inner):
            return _placeholder(inner)
    word = (
        node.id
        if isinstance(node, ast.Name)
        else node.attr
        if isinstance(node, ast.Attribute)
        else ""
    )
    word = re.sub(r"^n_", "number of ", word.strip("_")).replace("_", " ")
    return f"«{word}»" if len(word) > 2 and word.islower() else "«value»"
