"""Parses a template into nodes. Which functions exist is known here, so an unknown one is an error before execution."""

from __future__ import annotations

import math
import re
from collections.abc import Container
from typing import TypeAlias

import msgspec

from simgpu.loadtest.gotemplate import lexing
from simgpu.loadtest.gotemplate.errors import TemplateError
from simgpu.loadtest.gotemplate.lexing import Token

MAX_LENGTH = 1 << 20  # characters
MAX_DEPTH = 64
_MAX_INT = 2**63


class Literal(msgspec.Struct, frozen=True):
    """A constant; `nil` is one too."""

    value: bool | int | float | str | None


class Dot(msgspec.Struct, frozen=True):
    """The current value."""


class FieldChain(msgspec.Struct, frozen=True):
    """A chain of fields of the current value."""

    names: tuple[str, ...]


class Variable(msgspec.Struct, frozen=True):
    """A variable, perhaps with fields of it."""

    name: str
    names: tuple[str, ...] = ()


class Function(msgspec.Struct, frozen=True):
    """The name of a function."""

    name: str


class Chain(msgspec.Struct, frozen=True):
    """Fields of what a term gives."""

    term: Pipeline | Function
    names: tuple[str, ...]


class Command(msgspec.Struct, frozen=True):
    """An operand and its arguments."""

    words: tuple[Operand, ...]


class Pipeline(msgspec.Struct, frozen=True):
    """Commands, each of which gets the result of the one before; variables that it declares or assigns."""

    commands: tuple[Command, ...]
    variables: tuple[str, ...] = ()
    assigns: bool = False


Operand: TypeAlias = Literal | Dot | FieldChain | Variable | Function | Chain | Pipeline


class Text(msgspec.Struct, frozen=True):
    """Text outside of actions."""

    text: str


class Action(msgspec.Struct, frozen=True):
    """A pipeline whose result is written."""

    pipeline: Pipeline
    line: int


class Branch(msgspec.Struct, frozen=True):
    """`if`, `with` or `range`."""

    kind: str
    pipeline: Pipeline
    body: tuple[Node, ...]
    otherwise: tuple[Node, ...]
    line: int


class Jump(msgspec.Struct, frozen=True):
    """`break` or `continue`."""

    kind: str


Node: TypeAlias = Text | Action | Branch | Jump


def parse(template: str, functions: Container[str]) -> tuple[Node, ...]:
    """Parse a template."""
    if len(template) > MAX_LENGTH:
        raise TemplateError(f"longer than {MAX_LENGTH:,} characters")
    return _Parser(template, functions).whole()


_OPERANDS = frozenset(
    ["bool", "character", "dot", "field", "identifier", "number", "nil", "raw", "string", "variable", "("],
)
_LITERALS = (Literal, Dot)


class _Parser:
    def __init__(self, template: str, functions: Container[str]) -> None:
        self._tokens = lexing.tokens(template)
        self._ahead: list[Token] = []
        self._functions = functions
        self._variables = ["$"]
        self._ranges = 0
        self._depth = 0
        self._line = 1

    def whole(self) -> tuple[Node, ...]:
        nodes, end = self._list()
        if end != "eof":
            raise self._error(f"unexpected {{{{{end}}}}}")
        return nodes

    # Tokens

    def _next(self) -> Token:
        token = self._ahead.pop() if self._ahead else next(self._tokens)
        self._line = token.line
        return token

    def _solid(self) -> Token:
        """Return the next token that is not a space."""
        token = self._next()
        while token.kind == "space":
            token = self._next()
        return token

    def _back(self, *tokens: Token) -> None:
        self._ahead.extend(reversed(tokens))

    def _peek(self) -> Token:
        token = self._next()
        self._back(token)
        return token

    def _peek_solid(self) -> Token:
        token = self._solid()
        self._back(token)
        return token

    def _error(self, problem: str) -> TemplateError:
        return TemplateError(f"line {self._line}: {problem}")

    def _unexpected(self, token: Token, where: str) -> TemplateError:
        return self._error(f"unexpected {errors_text(token)} in {where}")

    # Structure

    def _list(self) -> tuple[tuple[Node, ...], str]:
        """Return nodes up to `end`, `else` or the end of the template, and which of them it was."""
        self._deeper()
        nodes: list[Node] = []
        ended = ""
        while not ended:
            token = self._next()
            if token.kind == "eof":
                ended = "eof"
            elif token.kind == "text":
                nodes.append(Text(token.text))
            else:
                ended = self._ended_or_add(nodes)
        self._depth -= 1
        return tuple(nodes), ended

    def _ended_or_add(self, nodes: list[Node]) -> str:
        """Return `end` or `else` if that is the action; else add it."""
        keyword = self._solid()
        if keyword.kind == "end":
            self._close("end")
            return "end"
        if keyword.kind == "else":
            return self._else()
        nodes.append(self._node(keyword))
        return ""

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(f"nested more than {MAX_DEPTH} levels deep")

    def _close(self, where: str) -> None:
        token = self._solid()
        if token.kind != "}}":
            raise self._unexpected(token, where)

    def _else(self) -> str:
        token = self._peek_solid()
        if token.kind in {"if", "with"}:
            self._solid()
            return f"else {token.kind}"
        self._close("else")
        return "else"

    def _node(self, token: Token) -> Node:
        if token.kind in {"if", "with", "range"}:
            return self._branch(token)
        if token.kind in {"break", "continue"}:
            self._close(token.kind)
            if not self._ranges:
                raise self._error(f"{{{{{token.kind}}}}} outside {{{{range}}}}")
            return Jump(token.kind)
        if token.kind in {"block", "define", "template"}:
            raise self._error(f"{{{{{token.kind}}}}} is not supported")
        self._back(token)
        return Action(self._pipeline("command", "}}"), token.line)

    def _branch(self, token: Token) -> Branch:
        known = len(self._variables)
        pipeline = self._pipeline(token.kind, "}}")
        self._ranges += token.kind == "range"
        body, ended = self._list()
        self._ranges -= token.kind == "range"
        otherwise: tuple[Node, ...] = ()
        if ended == f"else {token.kind}" and token.kind != "range":
            self._deeper()
            otherwise = (self._branch(Token(token.kind, "", self._line)),)
            self._depth -= 1
        elif ended == "else":
            otherwise, ended = self._list()
            if ended != "end":
                raise self._error(f"expected end; found {ended}")
        elif ended != "end":
            raise self._error("unexpected EOF" if ended == "eof" else f"expected end; found {ended}")
        del self._variables[known:]
        return Branch(token.kind, pipeline, body, otherwise, token.line)

    # Pipelines

    def _pipeline(self, where: str, end: str) -> Pipeline:
        self._deeper()
        variables, assigns = self._declarations(where)
        commands: list[Command] = []
        while True:
            token = self._solid()
            if token.kind == end:
                break
            if token.kind not in _OPERANDS:
                raise self._unexpected(token, where)
            self._back(token)
            commands.append(self._command())
        self._check(commands, where)
        self._depth -= 1
        return Pipeline(tuple(commands), variables, assigns)

    def _check(self, commands: list[Command], where: str) -> None:
        if not commands:
            raise self._error(f"missing value for {where}")
        for stage, command in enumerate(commands[1:], 2):
            if isinstance(command.words[0], _LITERALS):
                raise self._error(f"non executable command in pipeline stage {stage}")

    def _declarations(self, where: str) -> tuple[tuple[str, ...], bool]:
        found: list[str] = []
        while self._peek_solid().kind == "variable":
            variable = self._solid()
            beside = self._peek()
            sign = self._solid()
            if sign.kind in {"=", ":="}:
                found.append(variable.text)
                self._variables.append(variable.text)
                return tuple(found), sign.kind == "="
            if sign.kind == ",":
                found.append(variable.text)
                self._variables.append(variable.text)
                if where != "range" or len(found) > 1:
                    raise self._error(f"too many declarations in {where}")
                if self._peek_solid().kind not in {"variable", "}}", ")"}:
                    raise self._error("range can only initialize variables")
                continue
            self._back(*((variable, beside, sign) if beside.kind == "space" else (variable, sign)))
            break
        return tuple(found), False

    def _command(self) -> Command:
        words: list[Operand] = []
        while True:
            self._peek_solid()
            operand = self._operand()
            if operand is not None:
                words.append(operand)
            token = self._next()
            if token.kind == "space":
                continue
            if token.kind in {"}}", ")"}:
                self._back(token)
            elif token.kind != "|":
                raise self._unexpected(token, "operand")
            break
        if not words:
            raise self._error("empty command")
        return Command(tuple(words))

    def _operand(self) -> Operand | None:
        term = self._term()
        if term is None or self._peek().kind != "field":
            return term
        names: list[str] = []
        while self._peek().kind == "field":
            names.append(self._next().text[1:])
        if isinstance(term, FieldChain):
            return FieldChain((*term.names, *names))
        if isinstance(term, Variable):
            return Variable(term.name, (*term.names, *names))
        if isinstance(term, Pipeline | Function):
            return Chain(term, tuple(names))
        raise self._error("unexpected . after term")

    def _term(self) -> Operand | None:  # noqa: C901, PLR0911 - one for each kind of token
        token = self._solid()
        match token.kind:
            case "identifier":
                if token.text not in self._functions:
                    raise self._error(f'function "{token.text}" not defined')
                return Function(token.text)
            case "dot":
                return Dot()
            case "nil":
                return Literal(None)
            case "bool":
                return Literal(token.text == "true")
            case "variable":
                if token.text not in self._variables:
                    raise self._error(f'undefined variable "{token.text}"')
                return Variable(token.text)
            case "field":
                return FieldChain((token.text[1:],))
            case "number" | "character" | "string" | "raw":
                return Literal(self._constant(token))
            case "(":
                return self._pipeline("parenthesized pipeline", ")")
        self._back(token)
        return None

    def _constant(self, token: Token) -> int | float | str:
        try:
            return constant(token)
        except ValueError as error:
            raise self._error(str(error)) from None


def errors_text(token: Token) -> str:
    """Return a token for a message."""
    return "end of template" if token.kind == "eof" else repr(token.text[:40])


def constant(token: Token) -> int | float | str:
    """Return the value of a number, character or string token."""
    if token.kind == "raw":
        return token.text[1:-1].replace("\r", "")
    if token.kind == "string":
        return unquote(token.text)
    if token.kind == "character":
        char = unquote(token.text)
        if len(char) != 1:
            raise ValueError(f"malformed character constant: {token.text}")
        return ord(char)
    return _number(token.text)


_ESCAPE = re.compile(
    r"""\\(?:[abfnrtv\\'"]|[0-7]{3}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.?)""",
    re.DOTALL,
)
_SIMPLE = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\"}


def unquote(text: str) -> str:
    """Return the text of a Go string or character literal."""
    quote = text[0]

    def replace(found: re.Match[str]) -> str:
        code = found[0][1:]
        if code in _SIMPLE:
            return _SIMPLE[code]
        if code == quote:
            return quote
        if len(code) > 1:
            number = int(code, 8) if code[0] in "01234567" else int(code[1:], 16)
            # Bytes above ASCII would be parts of UTF-8 in Go.
            if number < 0x80 or (code[0] in "uU" and number < 0x110000 and not 0xD800 <= number < 0xE000):
                return chr(number)
        raise ValueError(f"invalid syntax: {text[:40]}")

    return _ESCAPE.sub(replace, text[1:-1])


_INTEGER = re.compile(
    r"[+-]?(?:0[xX](?P<hex>(?:_?[0-9a-fA-F])+)|0[oO](?P<octal>(?:_?[0-7])+)|0[bB](?P<binary>(?:_?[01])+)"
    r"|(?P<old>0(?:_?[0-7])*)|(?P<decimal>[1-9](?:_?[0-9])*))"
)
_BASES = {"hex": 16, "octal": 8, "binary": 2, "old": 8, "decimal": 10}
_FLOAT = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def _number(text: str) -> int | float:
    whole = _INTEGER.fullmatch(text)
    if whole is not None and whole.lastgroup is not None:
        magnitude = int(whole[whole.lastgroup].replace("_", ""), _BASES[whole.lastgroup])
        value = -magnitude if text.startswith("-") else magnitude
        if not -_MAX_INT <= value < _MAX_INT:
            raise ValueError(f"{text} overflows int")
        return value
    if _FLOAT.fullmatch(text) and any(sign in text for sign in ".eE") and math.isfinite(float(text)):
        return float(text)
    raise ValueError(f"illegal number syntax: {text!r}")
