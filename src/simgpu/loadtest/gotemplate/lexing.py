"""Splits a template into text and the tokens of its actions, as Go's lexer does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from simgpu.loadtest.gotemplate.errors import TemplateError

KEYWORDS = frozenset(
    ("block", "break", "continue", "define", "else", "end", "if", "range", "nil", "template", "with"),
)
_SPACES = " \t\r\n"
_NUMBER = re.compile(
    r"[+-]?(?:0[xX][0-9a-fA-F_]*(?:\.[0-9a-fA-F_]*)?(?:[pP][+-]?[0-9_]*)?|0[oO][0-7_]*|0[bB][01_]*"
    r"|[0-9_]*(?:\.[0-9_]*)?(?:[eE][+-]?[0-9_]*)?)i?"
)
_QUOTED = re.compile(r'"(?:\\[^\n]|[^"\\\n])*"')
_RAW = re.compile(r"`[^`]*`")
_CHARACTER = re.compile(r"'(?:\\[^\n]|[^'\\\n])*'")
_SPACE = re.compile(r"[ \t\r\n]+")


class Token(NamedTuple):
    """A token: what it is, its text, and its line."""

    kind: str
    text: str
    line: int


def tokens(template: str) -> Iterator[Token]:
    """Yield the tokens of a template; the last is of kind `eof`."""
    place, line = 0, 1
    while (start := template.find("{{", place)) >= 0:
        text = template[place:start]
        body = start + 2
        trimmed = template[body : body + 1] == "-" and template[body + 1 : body + 2] in _SPACE_SET
        if trimmed:
            body += 2
        shown = text.rstrip(_SPACES) if trimmed else text
        if shown:
            yield Token("text", shown, line)
        line += text.count("\n")
        if template.startswith("/*", body):
            place = _comment(template, body, line)
            line += template.count("\n", start, place)
            continue
        yield Token("{{", "{{", line)
        line += template.count("\n", start, body)
        inside = _Action(template, body, line)
        yield from inside
        place, line = inside.place, inside.line
    if place < len(template):
        yield Token("text", template[place:], line)
    yield Token("eof", "", line + template.count("\n", place))


_SPACE_SET = frozenset(_SPACES)


def _comment(template: str, start: int, line: int) -> int:
    """Return the end of a comment and its delimiter."""
    end = template.find("*/", start + 2)
    if end < 0:
        raise TemplateError(f"line {line}: unclosed comment")
    delimiter = _right_delimiter(template, end + 2)
    if delimiter is None:
        raise TemplateError(f"line {line}: comment ends before closing delimiter")
    return delimiter


def _right_delimiter(template: str, place: int) -> int | None:
    """Return where the text goes on after a right delimiter; None if there is none here."""
    if template.startswith("}}", place):
        return place + 2
    if template[place : place + 1] in _SPACE_SET and template.startswith("-}}", place + 1):
        place += 4
        while template[place : place + 1] in _SPACE_SET:
            place += 1
        return place
    return None


class _Action:
    """The tokens of one action, up to and with its right delimiter."""

    def __init__(self, template: str, place: int, line: int) -> None:
        self.template, self.place, self.line = template, place, line
        self._depth = 0

    def __iter__(self) -> Iterator[Token]:
        while True:
            after = _right_delimiter(self.template, self.place)
            if after is not None:
                if self._depth:
                    raise self._error("unclosed left paren")
                line = self.line
                self.line += self.template.count("\n", self.place, after)
                self.place = after
                yield Token("}}", "}}", line)
                return
            yield self._token()

    def _token(self) -> Token:  # noqa: PLR0911 - one for each kind of token
        char = self.template[self.place : self.place + 1]
        if not char:
            raise self._error("unclosed action")
        if char in _SPACE_SET:
            return self._spaces()
        if char in "|=,(":
            self._depth += char == "("
            return self._take(char, 1)
        if char == ")":
            self._depth -= 1
            if self._depth < 0:
                raise self._error("unexpected right paren")
            return self._take(char, 1)
        if char == ":":
            if not self.template.startswith(":=", self.place):
                raise self._error("expected :=")
            return self._take(":=", 2)
        if char in "\"`'":
            return self._quoted(char)
        if char in "$.":
            return self._name(char)
        return self._other(char)

    def _other(self, char: str) -> Token:
        if char in "+-" or char in "0123456789":
            return self._number()
        if _alphanumeric(char):
            return self._word()
        if char.isascii() and char.isprintable():
            return self._take("char", 1)
        raise self._error(f"unrecognized character in action: {char!r}")

    def _spaces(self) -> Token:
        found = _SPACE.match(self.template, self.place)
        assert found is not None  # noqa: S101 - the caller looked
        end = found.end()
        if self.template.startswith("-}}", end) and end - self.place > 1:
            end -= 1  # the last space belongs to the trim marker
        return self._take("space", end - self.place)

    def _quoted(self, quote: str) -> Token:
        if quote == '"':
            kind, found = "string", _QUOTED.match(self.template, self.place)
        elif quote == "`":
            kind, found = "raw", _RAW.match(self.template, self.place)
        else:
            kind, found = "character", _CHARACTER.match(self.template, self.place)
        if found is None:
            raise self._error(f"unterminated {kind} constant")
        return self._take(kind, found.end() - self.place)

    def _name(self, sign: str) -> Token:
        after = self.template[self.place + 1 : self.place + 2]
        if sign == "." and after and after in "0123456789":
            return self._number()
        if self._terminated(self.place + 1):
            return self._take("variable" if sign == "$" else "dot", 1)
        return self._take("variable" if sign == "$" else "field", 1 + self._length(self.place + 1))

    def _word(self) -> Token:
        length = self._length(self.place)
        word = self.template[self.place : self.place + length]
        if word in KEYWORDS:
            return self._take(word, length)
        return self._take("bool" if word in {"true", "false"} else "identifier", length)

    def _length(self, start: int) -> int:
        """Return the length of the name that begins here; it must end at a terminator."""
        end = start
        while _alphanumeric(self.template[end : end + 1]):
            end += 1
        if end == start or not self._terminated(end):
            raise self._error(f"bad character {self.template[end : end + 1]!r}")
        return end - start

    def _terminated(self, place: int) -> bool:
        char = self.template[place : place + 1]
        return not char or char in _SPACE_SET or char in ".,|:()" or self.template.startswith("}}", place)

    def _number(self) -> Token:
        found = _NUMBER.match(self.template, self.place)
        length = len(found[0]) if found is not None else 0
        following = self.template[self.place + length : self.place + length + 1]
        if not length or _alphanumeric(following) or (following and following in "+-"):
            raise self._error(f"bad number syntax: {self.template[self.place : self.place + length + 1]!r}")
        return self._take("number", length)

    def _take(self, kind: str, length: int) -> Token:
        text = self.template[self.place : self.place + length]
        token = Token(kind, text, self.line)
        self.place += length
        self.line += text.count("\n")
        return token

    def _error(self, problem: str) -> TemplateError:
        return TemplateError(f"line {self.line}: {problem}")


def _alphanumeric(char: str) -> bool:
    return char == "_" or char.isalpha() or char.isdecimal()
