"""Container images as archives: OCI layouts that `docker load` reads too. No image is fetched, none is started."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

import msgspec

PLATFORMS = {"x86_64": "amd64", "aarch64": "arm64"}  # OCI's names of processors, by those of Linux
EPOCH = "1970-01-01T00:00:00Z"  # of all files: the same contents give the same image

_INDEX = "application/vnd.oci.image.index.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


def this_platform() -> str:
    """Return OCI's name of this machine's processor."""
    return PLATFORMS[platform.machine()]


class Blob(msgspec.Struct, frozen=True):
    """A compressed layer in a file: its digests, compressed and not, and its size."""

    path: str
    digest: str
    diff_id: str
    size: int

    def save(self) -> None:
        """Write the digests beside the layer."""
        Path(self.path).with_suffix(".json").write_bytes(msgspec.json.encode(self))

    @classmethod
    def load(cls, path: Path) -> Blob:
        """Return a layer that was saved, and may have been moved since."""
        found = msgspec.json.decode(path.with_suffix(".json").read_bytes(), type=cls)
        return msgspec.structs.replace(found, path=str(path))


class _Hashing(io.RawIOBase):
    """Writes through to a file, and hashes what passes."""

    def __init__(self, target: IO[bytes] | gzip.GzipFile) -> None:
        self._target = target
        self.digest = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.digest.update(data)
        self.size += len(data)
        self._target.write(data)
        return len(data)


class Layer:
    """A file system, written into a compressed archive file by file; all files are root's and of no date."""

    def __init__(self, path: Path, *, level: int = 6) -> None:
        self.path = path
        self._file = path.open("wb")
        self._packed = _Hashing(self._file)
        self._gzip = gzip.GzipFile("", "wb", level, self._packed, mtime=0)
        self._plain = _Hashing(self._gzip)
        self._archive = tarfile.open(fileobj=self._plain, mode="w|", format=tarfile.GNU_FORMAT)  # noqa: SIM115 - see __exit__
        self._folders: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self._archive, self._gzip, self._file):
            stream.close()

    @property
    def blob(self) -> Blob:
        """The finished layer."""
        packed, plain = self._packed.digest.hexdigest(), self._plain.digest.hexdigest()
        return Blob(str(self.path), f"sha256:{packed}", f"sha256:{plain}", self._packed.size)

    def file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """Add a file."""
        entry = self._entry(path)
        entry.size, entry.mode = len(content), mode
        self._archive.addfile(entry, io.BytesIO(content))

    def link(self, path: str, to: str) -> None:
        """Add a symbolic link."""
        entry = self._entry(path)
        entry.type, entry.linkname = tarfile.SYMTYPE, to
        self._archive.addfile(entry)

    def tree(self, folder: Path) -> None:
        """Add everything in a folder, at the root."""
        for path in sorted(folder.iterdir()):
            self._archive.add(path, path.name, filter=_undated)

    def _entry(self, path: str) -> tarfile.TarInfo:
        for parent in reversed(Path(path).parents):
            if str(parent) not in (".", *self._folders):
                folder = tarfile.TarInfo(str(parent))
                folder.type, folder.mode = tarfile.DIRTYPE, 0o755
                self._archive.addfile(folder)
                self._folders.add(str(parent))
        return tarfile.TarInfo(path)


def _undated(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    return entry


class Image(msgspec.Struct, frozen=True):
    """An image for one processor: its layers, and what its containers run (fields of OCI's `config`)."""

    platform: str
    layers: tuple[Blob, ...]
    config: dict[str, Any]


def write(target: Path, images: Mapping[str, Iterable[Image]]) -> None:
    """Write images by name into one archive; a name's images are for different processors."""
    blobs: dict[str, bytes | Path] = {}
    index, loaded = [], []
    for name, variants in images.items():
        manifests = [_manifest(image, blobs) for image in variants]
        native = [found for found in manifests if found["platform"]["architecture"] == this_platform()]
        top = manifests[0] if len(manifests) == 1 else _add(blobs, _INDEX, {"manifests": manifests})
        index.append(top | {"annotations": {"io.containerd.image.name": _full(name)}})
        loaded += [_docker(name, found, blobs) for found in native or manifests[:1]]
    documents = {
        "oci-layout": {"imageLayoutVersion": "1.0.0"},
        "index.json": {"schemaVersion": 2, "mediaType": _INDEX, "manifests": index},
        "manifest.json": loaded,  # what Docker before 25 reads
    }
    with tarfile.open(target, "w") as archive:
        for path, document in documents.items():
            _put(archive, path, json.dumps(document).encode())
        for digest, content in sorted(blobs.items()):
            _put(archive, _place(digest), content)


def _full(name: str) -> str:
    """Return a name as containerd has it; one without a host is in Docker's library."""
    first, _, rest = name.partition("/")
    return name if rest and ("." in first or ":" in first) else f"docker.io/{name if rest else f'library/{name}'}"


def _manifest(image: Image, blobs: dict[str, bytes | Path]) -> dict[str, Any]:
    config = _add(
        blobs, _CONFIG,
        {
            "architecture": image.platform, "os": "linux", "created": EPOCH, "config": image.config,
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in image.layers]},
            "history": [{"created": EPOCH, "created_by": "deploy.image"} for _ in image.layers],  # buildah counts them
        },
        plain=True,
    )  # fmt: skip
    layers = [{"mediaType": _LAYER, "digest": layer.digest, "size": layer.size} for layer in image.layers]
    blobs |= {layer.digest: Path(layer.path) for layer in image.layers}
    made = _add(blobs, _MANIFEST, {"config": config, "layers": layers})
    return made | {"platform": {"architecture": image.platform, "os": "linux"}}


def _docker(name: str, manifest: Mapping[str, Any], blobs: Mapping[str, bytes | Path]) -> dict[str, Any]:
    text = blobs[manifest["digest"]]
    assert isinstance(text, bytes)  # noqa: S101 - a manifest is no layer
    found = json.loads(text)
    layers: Sequence[Mapping[str, Any]] = found["layers"]
    return {
        "Config": _place(found["config"]["digest"]), "RepoTags": [name],
        "Layers": [_place(layer["digest"]) for layer in layers],
    }  # fmt: skip


def _add(
    blobs: dict[str, bytes | Path], kind: str, document: Mapping[str, Any], *, plain: bool = False
) -> dict[str, Any]:
    """Add a document; return its descriptor."""
    head = {} if plain else {"schemaVersion": 2, "mediaType": kind}
    content = json.dumps(head | dict(document)).encode()
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    blobs[digest] = content
    return {"mediaType": kind, "digest": digest, "size": len(content)}


def _place(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _put(archive: tarfile.TarFile, name: str, content: bytes | Path) -> None:
    entry = tarfile.TarInfo(name)
    if isinstance(content, Path):
        entry.size = content.stat().st_size
        with content.open("rb") as file:
            archive.addfile(entry, file)
    else:
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
