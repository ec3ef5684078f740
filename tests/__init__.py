"""Tests by level: a folder each, from pure and fast to a whole cluster."""
