"""How a template uses its variables."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from simgpu.loadtest.gotemplate.parsing import (
    Action,
    Branch,
    Chain,
    Dot,
    FieldChain,
    Function,
    Node,
    Operand,
    Pipeline,
    Variable,
)

_CHANCE = "Rand"  # functions that begin so give another result each time


def only_printed(nodes: tuple[Node, ...], name: str, *, forbidden: Collection[str]) -> bool:
    """Return whether a field is never more than printed, others are not read, and nothing depends on chance."""
    for node in nodes:
        if isinstance(node, Action):
            if _plain(node.pipeline) == name:
                continue
            if not _independent(node.pipeline, {name, *forbidden}):
                return False
        elif isinstance(node, Branch):
            # Within `with` and `range` the current value is another one.
            inner = only_printed(node.body, name, forbidden=forbidden) if node.kind == "if" else False
            if not inner and node.body:
                return False
            if not _independent(node.pipeline, {name, *forbidden}):
                return False
            if not only_printed(node.otherwise, name, forbidden=forbidden):
                return False
    return True


def _plain(pipeline: Pipeline) -> str:
    """Return the field that a pipeline consists of; empty for any other."""
    if len(pipeline.commands) == 1 and not pipeline.variables and len(pipeline.commands[0].words) == 1:
        word = pipeline.commands[0].words[0]
        if isinstance(word, FieldChain) and len(word.names) == 1:
            return word.names[0]
    return ""


def _independent(pipeline: Pipeline, names: Collection[str]) -> bool:
    for word in _words(pipeline):
        if isinstance(word, Dot) or (isinstance(word, FieldChain) and word.names[0] in names):
            return False
        if isinstance(word, Variable) and word.name == "$" and (not word.names or word.names[0] in names):
            return False
        if isinstance(word, Function) and word.name.startswith(_CHANCE):
            return False
    return True


def _words(pipeline: Pipeline) -> Iterator[Operand]:
    for command in pipeline.commands:
        for word in command.words:
            if isinstance(word, Pipeline):
                yield from _words(word)
            elif isinstance(word, Chain):
                yield from _words(word.term) if isinstance(word.term, Pipeline) else iter((word.term,))
            else:
                yield word
