"""The temporary folder of `simgpu run`: pages, socket, library and tool, and the environment that points there."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from simgpu import errors, vocabulary
from simgpu.page import native

PAGES = "gpus"
_PREFIX = "simgpu-run-"
_MAX_PATH = 60  # characters of the parent folder: a socket's path is short


@contextlib.contextmanager
def create() -> Iterator[Path]:
    """Create a folder and remove it at the end, as well as folders that killed runs left behind.

    Paths of sockets are short, and search paths are separated by colons: if the path of the folder for temporary files
    is too long or has a colon, another folder is used.
    """
    places = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/dev/shm"), Path("/var/tmp")]  # noqa: S108
    fit = (place for place in places if len(str(place)) <= _MAX_PATH and not set(":;") & set(str(place)))
    place = next((place for place in fit if os.access(place, os.W_OK)), None)
    if place is None:
        raise errors.InputError(
            "TMPDIR", f"must be a folder with a path of at most {_MAX_PATH} characters, without ':'"
        )
    for old in place.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), _locked(old):
            shutil.rmtree(old, ignore_errors=True)
    unlocked = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=place))
    with _locked(unlocked):
        made = unlocked.rename(place / unlocked.name.removeprefix("."))  # visible to other runs only once it is locked
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder; `OSError` if it is another user's, or locked by a run that is alive.

    A lock, not a pid: pids are reused, and differ between containers.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise PermissionError
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def environment(given: Mapping[str, str], home: Path, socket: Path) -> dict[str, str]:
    """Link our library and tool into the folder, and return the environment with both before all others."""
    library, tool = home / "lib", home / "bin"
    for folder, source, names in (
        (library, native.library(), (vocabulary.LIBRARY, "libnvidia-ml.so")),
        (tool, native.tool(), (vocabulary.SMI,)),
    ):
        folder.mkdir()
        for name in names:
            (folder / name).symlink_to(source)
    ours = dict(given)
    for name, folder, default in (("LD_LIBRARY_PATH", library, ""), ("PATH", tool, os.defpath)):
        before = given.get(name, default)
        ours[name] = f"{folder}{os.pathsep}{before}" if before else str(folder)
    return ours | {vocabulary.PAGES_ENV: str(home / PAGES), vocabulary.SOCKET_ENV: str(socket)}
