"""`python -m deploy.dashboards` writes the JSON files."""

from __future__ import annotations

from deploy.dashboards import files

files.write()
