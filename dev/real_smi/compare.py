"""Lists what a real nvidia-smi printed on our library otherwise than was recorded.

`python -m dev.real_smi.compare VIEWS`, where `VIEWS` is the `views.json` that `views` wrote. Ends with 1 if there is a
difference.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.fixtures import recordings


def expectations() -> Iterator[tuple[str, int, str]]:
    """Each view of the bundle: its name, the recorded exit code, and the recorded output."""
    for name in recordings.TEXTS:
        _, code, output = recordings.recording(name)
        if name in recordings.SCROLLING and name != "load-smi-dmon-all":
            header, units, *rows = output.splitlines(keepends=True)
            for place, row in enumerate(rows):
                yield f"{name}.{place}", code, header + units + row
        else:
            yield name, code, output
    for name in recordings.QUERIES:
        groups = json.loads((recordings.RECORDINGS / f"{name}.json").read_text())
        for place, (code, header, values) in enumerate(groups.values()):
            yield f"{name}.{place}", code, "".join(f"{line}\n" for line in (header, values) if line)


def differences(printed: Mapping[str, tuple[int, str, str]]) -> Iterator[tuple[str, list[str]]]:
    """Each view that is not as recorded, with the lines that differ."""
    for name, code, output in expectations():
        told, text, errors = printed[name]
        if name.partition(".")[0] in recordings.QUERIES:  # recorded line by line, without empty ones
            text = text.rstrip("\n") + "\n"
        ours = [f"[rc={told}]", *recordings.plain(text, {}).splitlines(), *errors.splitlines()]
        theirs = [f"[rc={code}]", *recordings.plain(output, {}).splitlines()]
        if ours != theirs:
            yield name, list(difflib.unified_diff(theirs, ours, "recorded", "on our library", lineterm="", n=0))[2:]


def main(views: Path) -> int:
    """Print all differences."""
    found = dict(differences(json.loads(views.read_text())))
    for name, lines in found.items():
        print(f"=== {name}", *lines, sep="\n")
    print(f"{len(found)} views of {len(list(expectations()))} differ")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
