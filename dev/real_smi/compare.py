"""Lists what a real nvidia-smi printed on our library otherwise than was recorded, and keeps what it printed.

`python -m dev.real_smi.compare [--keep] VIEWS`, where `VIEWS` is the `views.json` of `views`; with `--keep`, what
is as recorded or differs as listed goes to the golden file, and what the library, which must be that of the bundle,
answers to the tool's calls goes beside it. Ends with 1 if there is a difference that is not listed.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from dev.real_smi import answers
from tests.fixtures import real_smi, recordings


def texts(views: Path) -> dict[str, str]:
    """What the tool printed, by view."""
    found = {}
    for name, (code, text, errors) in json.loads(views.read_text()).items():
        is_query = name.partition(".")[0] in recordings.QUERIES  # recorded line by line, without empty ones
        found[name] = real_smi.whole(code, (text.rstrip("\n") + "\n" if is_query else text) + errors)
    return found


def differences(recorded: Mapping[str, str], printed: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Each view that is neither as recorded nor as listed, with the lines that differ."""
    for name, text in recorded.items():
        found = printed.get(name, "")
        if found != text and not (name in real_smi.DIFFERENCES and real_smi.is_as_listed(name, text, found)):
            lines = difflib.unified_diff(text.splitlines(), found.splitlines(), lineterm="", n=0)
            yield name, list(lines)[2:]


def keep(recorded: Mapping[str, str], printed: Mapping[str, str]) -> None:
    """Write the golden file: digests of texts that are as recorded, and the other texts."""
    shown = {name: real_smi.digest(text) if text == recorded[name] else text for name, text in sorted(printed.items())}
    real_smi.KEPT.parent.mkdir(exist_ok=True)
    real_smi.KEPT.write_text(json.dumps(shown, indent=1) + "\n")


def main(views: Path, *, keeps: bool) -> int:
    """Print all differences that are not listed, and keep the rest."""
    recorded, printed = real_smi.recorded(), texts(views)
    found = dict(differences(recorded, printed))
    for name, lines in found.items():
        print(f"=== {name}", *lines, sep="\n")
    print(f"{len(found)} views of {len(recorded)} differ otherwise than listed")
    stale = [name for name in real_smi.DIFFERENCES if printed.get(name) == recorded[name]]
    if stale:
        print(f"as recorded, take them off the list: {', '.join(stale)}")
    if keeps:
        keep(recorded, {name: text for name, text in printed.items() if name in recorded and name not in found})
        answers.keep_with_tool()
    return 1 if found or stale else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[-1]), keeps="--keep" in sys.argv[1:]))
