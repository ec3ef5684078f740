"""Keeps what the library answers to the calls of nvidia-smi: `python -m dev.real_smi.answers REASON`.

`compare --keep` keeps the answers with what the real tool printed on them. Where these answers change later, and the
tool cannot be run, `REASON` says why it prints the same: for each call that changed, it is kept until the next run.
"""

from __future__ import annotations

import subprocess
import sys

import msgspec

from tests.fixtures import answers


def commit() -> str:
    """The commit of the sources."""
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def keep_with_tool() -> None:
    """Keep the answers as those on which the tool was run."""
    answers.keep(answers.Kept(commit(), {}, answers.everything()))


def main(reason: str) -> int:
    """Keep answers that changed since the tool was run."""
    before, now = answers.kept(), answers.everything()
    calls = sorted({call for _, call, _, _ in answers.changed(before.answers, now)})
    print(*calls, f"{len(calls)} calls are answered otherwise", sep="\n")
    since = before.since | dict.fromkeys(calls, reason)
    answers.keep(msgspec.structs.replace(before, since=since, answers=now))
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1].strip():
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
