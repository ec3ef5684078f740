"""Puts the programs of native/ into the wheel, and builds them first where they are not current."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent


class NativeHook(BuildHookInterface[Any]):
    """An editable install takes what `make native` builds; a wheel is built whole."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """What the build of a wheel needs besides hatchling: the compiler, and what the page's table is made with."""
        return ["ziglang>=0.17.dev0", "numpy>=2.2", "msgspec>=0.19"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, and name the files, which git does not know."""
        if version == "editable":
            return
        sys.path[:0] = [str(ROOT), str(ROOT / "src")]
        programs = importlib.import_module("native.build")
        if programs.main():
            message = "the programs of native/ could not be built"
            raise RuntimeError(message)
        folders = ((name, folder.relative_to(ROOT).as_posix()) for name, folder in programs.FOLDERS.items())
        build_data["artifacts"] += [f"{folder}/*/{name}" for name, folder in folders]
