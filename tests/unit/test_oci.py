"""Images as archives: what Docker, containerd and buildah read of them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any

from deploy.image import contents, oci

DOCKERFILE = Path(contents.__file__).parents[1] / "Dockerfile"


def layer(path: Path, text: bytes = b"hello") -> oci.Blob:
    with oci.Layer(path) as made:
        made.file("etc/motd", text)
        made.link("bin/sh", "busybox")
    return made.blob


def read(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        return {item.name: archive.extractfile(item).read() for item in archive.getmembers()}  # type: ignore[union-attr]


def blob(files: dict[str, bytes], descriptor: dict[str, Any]) -> bytes:
    found = files[f"blobs/{descriptor['digest'].replace(':', '/')}"]
    assert descriptor["digest"] == f"sha256:{hashlib.sha256(found).hexdigest()}"
    assert descriptor["size"] == len(found)
    return found


def test_every_descriptor_leads_to_its_blob_for_each_processor(tmp_path: Path) -> None:
    made = layer(tmp_path / "layer")
    oci.write(
        tmp_path / "image.tar", {"simgpu:1": [oci.Image(name, (made,), {"User": "1"}) for name in ("amd64", "arm64")]}
    )
    files = read(tmp_path / "image.tar")
    (top,) = json.loads(files["index.json"])["manifests"]
    assert top["annotations"] == {"io.containerd.image.name": "docker.io/library/simgpu:1"}
    manifests = json.loads(blob(files, top))["manifests"]
    assert [item["platform"]["architecture"] for item in manifests] == ["amd64", "arm64"]
    for item in manifests:
        manifest = json.loads(blob(files, item))
        config = json.loads(blob(files, manifest["config"]))
        assert config["architecture"] == item["platform"]["architecture"]
        assert len(config["history"]) == len(config["rootfs"]["diff_ids"]) == 1
        (packed,) = manifest["layers"]
        plain = gzip.decompress(blob(files, packed))
        assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(plain).hexdigest()}"]
        with tarfile.open(fileobj=io.BytesIO(plain)) as inside:
            assert inside.getnames() == ["etc", "etc/motd", "bin", "bin/sh"]
    (loaded,) = json.loads(files["manifest.json"])
    assert loaded["RepoTags"] == ["simgpu:1"]
    assert {loaded["Config"], *loaded["Layers"]} <= files.keys()


def test_the_same_contents_give_the_same_image(tmp_path: Path) -> None:
    one, same, other = (layer(tmp_path / str(place), text) for place, text in enumerate((b"a", b"a", b"b")))
    assert (one.digest, one.diff_id) == (same.digest, same.diff_id)
    assert one.digest != other.digest


def test_the_dockerfile_runs_what_our_own_image_runs() -> None:
    text, ours = DOCKERFILE.read_text(), contents.config()
    assert json.loads(re.findall(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)[0]) == ours["Entrypoint"]
    assert json.loads(re.findall(r"^CMD (.*)$", text, re.MULTILINE)[0]) == ours["Cmd"]
    assert re.findall(r"^USER (.*)$", text, re.MULTILINE) == [ours["User"]]
    assert re.findall(r"^WORKDIR (.*)$", text, re.MULTILINE)[-1] == ours["WorkingDir"]
    for setting in ours["Env"][1:]:
        assert setting in text
