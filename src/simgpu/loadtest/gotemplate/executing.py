"""Executes a parsed template, within bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from simgpu.loadtest.gotemplate import builtins, parsing, values
from simgpu.loadtest.gotemplate.errors import TemplateError
from simgpu.loadtest.gotemplate.parsing import (
    Action,
    Branch,
    Chain,
    Command,
    Dot,
    FieldChain,
    Jump,
    Literal,
    Node,
    Operand,
    Pipeline,
    Text,
    Variable,
)
from simgpu.loadtest.gotemplate.parsing import Function as FunctionName

MAX_OUTPUT = 4 << 20  # characters
MAX_STEPS = 200_000  # nodes and calls
_MISSING = object()  # there is no piped value


class Library(msgspec.Struct, frozen=True):
    """Functions by name, each with its least and greatest number of arguments (None: any).

    `trusted` are those whose text may bring structure: they read files, or quote.
    """

    functions: Mapping[str, tuple[Callable[..., Any], int, int | None]]
    trusted: frozenset[str] = frozenset()


class OutputPiece(msgspec.Struct, frozen=True):
    """A part of the output; `foreign` if it is the text of a variable."""

    text: str
    foreign: bool


class _Jumped(Exception):
    def __init__(self, kind: str) -> None:
        self.kind = kind


def execute(nodes: tuple[Node, ...], data: Mapping[str, Any], library: Library) -> list[OutputPiece]:
    """Execute a template on its data; strings of the data are foreign."""
    state = _State(library)
    dot = values.foreign(dict(data))
    state.variables.append(("$", dot))
    state.walk(nodes, dot)
    return state.pieces


class _State:
    def __init__(self, library: Library) -> None:
        self.pieces: list[OutputPiece] = []
        self.variables: list[tuple[str, Any]] = []
        self._library = library
        self._length = 0
        self._steps = 0
        self._line = 1

    def _error(self, problem: str) -> TemplateError:
        return TemplateError(f"line {self._line}: {problem}")

    def _step(self) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise self._error(f"more than {MAX_STEPS:,} steps")

    def _write(self, text: str, *, foreign: bool) -> None:
        self._length += len(text)
        if self._length > MAX_OUTPUT:
            raise self._error(f"more than {MAX_OUTPUT:,} characters of output")
        self.pieces.append(OutputPiece(text, foreign))

    # Nodes

    def walk(self, nodes: tuple[Node, ...], dot: Any) -> None:
        for node in nodes:
            self._step()
            if isinstance(node, Text):
                self._write(node.text, foreign=False)
            elif isinstance(node, Action):
                self._line = node.line
                value = self._pipeline(node.pipeline, dot)
                if not node.pipeline.variables:
                    text = values.NO_VALUE if value is None else values.text(value)
                    self._write(text, foreign=values.has_foreign(value))
            elif isinstance(node, Jump):
                raise _Jumped(node.kind)
            else:
                self._branch(node, dot)

    def _branch(self, node: Branch, dot: Any) -> None:
        self._line = node.line
        known = len(self.variables)
        try:
            if node.kind == "range":
                self._range(node, dot)
                return
            value = self._pipeline(node.pipeline, dot)
            if values.truth(value):
                self.walk(node.body, value if node.kind == "with" else dot)
            else:
                self.walk(node.otherwise, dot)
        finally:
            del self.variables[known:]

    def _range(self, node: Branch, dot: Any) -> None:
        value = self._pipeline(node.pipeline, dot)
        names = node.pipeline.variables
        known = len(self.variables)
        ran = False
        for index, item in self._items(value, len(names)):
            ran = True
            self._step()
            self._set_loop(node.pipeline, index, item)
            try:
                self.walk(node.body, item)
            except _Jumped as jumped:
                if jumped.kind == "break":
                    break
            finally:
                del self.variables[known:]
        if not ran:
            self.walk(node.otherwise, dot)

    def _items(self, value: Any, names: int) -> Iterator[tuple[Any, Any]]:
        if isinstance(value, list):
            return iter(list(enumerate(value)))
        if isinstance(value, dict):
            return iter(sorted(value.items()))
        if isinstance(value, int) and not isinstance(value, bool):
            if names > 1:
                raise self._error(f"can't use {value} to iterate over more than one variable")
            return ((None, number) for number in range(value))
        if value is None:
            return iter(())
        raise self._error(f"range can't iterate over {values.text(value)[:80]}")

    def _set_loop(self, pipeline: Pipeline, index: Any, item: Any) -> None:
        """Set the variables of a range: the item, or index and item."""
        pairs = zip(pipeline.variables, (index, item) if len(pipeline.variables) > 1 else (item,), strict=False)
        for place, (name, value) in enumerate(pairs):
            if pipeline.assigns:
                self._assign(name, value)
            else:
                at = len(self.variables) - len(pipeline.variables) + place
                self.variables[at] = (name, value)

    def _assign(self, name: str, value: Any) -> None:
        for place in range(len(self.variables) - 1, -1, -1):
            if self.variables[place][0] == name:
                self.variables[place] = (name, value)
                return
        raise self._error(f"undefined variable: {name}")

    # Pipelines

    def _pipeline(self, pipeline: Pipeline, dot: Any) -> Any:
        value: Any = _MISSING
        for command in pipeline.commands:
            value = self._command(command, dot, value)
        for name in pipeline.variables:
            if pipeline.assigns:
                self._assign(name, value)
            else:
                self.variables.append((name, value))
        return value

    def _command(self, command: Command, dot: Any, piped: Any) -> Any:
        self._step()
        first = command.words[0]
        if isinstance(first, FunctionName):
            return self._call(first.name, command.words[1:], dot, piped)
        if len(command.words) > 1 or piped is not _MISSING:
            raise self._error("can't give argument to non-function")
        if isinstance(first, Literal) and first.value is None:
            raise self._error("nil is not a command")
        return self._value(first, dot)

    def _value(self, operand: Operand, dot: Any) -> Any:  # noqa: PLR0911 - one for each kind of operand
        if isinstance(operand, Literal):
            return operand.value
        if isinstance(operand, Dot):
            return dot
        if isinstance(operand, FieldChain):
            return self._fields(dot, operand.names)
        if isinstance(operand, Variable):
            return self._fields(self._variable(operand.name), operand.names)
        if isinstance(operand, FunctionName):
            return self._call(operand.name, (), dot, _MISSING)
        if isinstance(operand, Chain):
            return self._fields(self._value(operand.term, dot), operand.names)
        return self._pipeline(operand, dot)

    def _variable(self, name: str) -> Any:
        for known, value in reversed(self.variables):
            if known == name:
                return value
        raise self._error(f"undefined variable: {name}")

    def _fields(self, value: Any, names: tuple[str, ...]) -> Any:
        for name in names:
            if value is None:
                return None
            if not isinstance(value, dict):
                raise self._error(f"can't evaluate field {name} in type {values.type_name(value)}")
            value = value.get(name)
        return value

    def _call(self, name: str, words: tuple[Operand, ...], dot: Any, piped: Any) -> Any:
        self._step()
        if name in {"and", "or"}:
            return self._shortcut(name, words, dot, piped)
        arguments = [self._value(word, dot) for word in words]
        if piped is not _MISSING:
            arguments.append(piped)
        function, least, most = builtins.FUNCTIONS.get(name) or self._library.functions[name]
        if len(arguments) < least or (most is not None and len(arguments) > most):
            raise self._error(f"wrong number of args for {name}: got {len(arguments)}")
        try:
            result = function(*arguments)
        except (ValueError, ArithmeticError, OSError) as error:
            raise self._error(f"error calling {name}: {error}") from None
        if isinstance(result, str) and len(result) > MAX_OUTPUT:
            raise self._error(f"{name}: more than {MAX_OUTPUT:,} characters")
        if name not in self._library.trusted and any(values.has_foreign(item) for item in arguments):
            return values.foreign(result)
        return result

    def _shortcut(self, name: str, words: tuple[Operand, ...], dot: Any, piped: Any) -> Any:
        """`and` and `or` evaluate no more arguments than they need."""
        value: Any = _MISSING
        for word in words:
            value = self._value(word, dot)
            if values.truth(value) == (name == "or"):
                return value
        if piped is not _MISSING:
            return piped
        if value is _MISSING:
            raise self._error(f"wrong number of args for {name}: want at least 1 got 0")
        return value


def parse(template: str, library: Library) -> tuple[Node, ...]:
    """Parse a template with the functions of a library and the built-in ones."""
    return parsing.parse(template, {*builtins.FUNCTIONS, *library.functions, "and", "or"})
