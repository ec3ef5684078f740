"""The one error of templates."""

from __future__ import annotations


class TemplateError(ValueError):
    """A template cannot be parsed or executed; the message has the line."""
