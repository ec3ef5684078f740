"""SHA-256 checksums of release files: pinned in `checksums.txt`, or published by the projects."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path, PurePosixPath

import msgspec

PINS = Path(__file__).parent / "checksums.txt"

_SUM = re.compile(r"[0-9a-fA-F]{64}")


class _Asset(msgspec.Struct):
    name: str
    digest: str | None = None


class _GitHubRelease(msgspec.Struct):
    assets: list[_Asset]


def pinned() -> dict[str, str]:
    """Return the pinned checksums by file name."""
    return parse(PINS.read_text(encoding="utf-8"))


def parse(text: str) -> dict[str, str]:
    """Parse the output format of sha256sum into checksums by file name; other lines are ignored."""
    lines = (line.split(maxsplit=1) for line in text.splitlines() if not line.startswith("#"))
    return {
        words[1].removeprefix("*").strip(): words[0].lower()
        for words in lines
        if len(words) == 2 and _SUM.fullmatch(words[0])
    }


def published(content: bytes, name: str) -> str | None:
    """Return the checksum of a file from a published checksum file; None if it is not in it.

    Three formats are in use: a checksum alone, the output of sha256sum, and GitHub's JSON of a release.
    """
    file = PurePosixPath(name).name
    text = content.decode("utf-8", "replace").strip()
    if text.startswith("{"):
        return _github(content, file)
    if _SUM.fullmatch(text):
        return text.lower()
    return {PurePosixPath(listed).name: known for listed, known in parse(text).items()}.get(file)


def _github(content: bytes, file: str) -> str | None:
    try:
        release = msgspec.json.decode(content, type=_GitHubRelease)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    digests = {asset.name: asset.digest or "" for asset in release.assets}
    known = digests.get(file, "").removeprefix("sha256:")
    return known.lower() if _SUM.fullmatch(known) else None


def of(path: Path) -> str:
    """Return the checksum of a file on disk."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
