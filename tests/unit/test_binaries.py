"""Which programs there are, which versions fit, and where they come from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simgpu import errors
from simgpu.cluster import binaries, build, components, locate, progress


def script(path: Path, prints: str, code: int = 0) -> Path:
    path.write_text(f"#!/bin/sh\necho '{prints}'\nexit {code}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, a PATH with nothing in it, and no downloads; returns the folder that is on PATH."""
    on_path = tmp_path / "path"
    on_path.mkdir()
    monkeypatch.setenv("PATH", str(on_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SIMGPU_DOWNLOAD", "never")
    return on_path


@pytest.mark.parametrize("name", binaries.ALL)
def test_every_program_is_pinned_to_a_version_that_fits_itself(name: str) -> None:
    module = binaries.ALL[name].module
    version = binaries.parse_version(module.version)
    assert version is not None
    assert re.fullmatch(r"\d+\.\d+\.\d+", module.version)
    assert module.fits(version)


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        ("Kubernetes v1.36.4", (1, 36, 4)),
        ("9" * 5000 + ".1.2, v" + "9" * 5000 + ".3.4", None),
        ("etcd Version: 3.6.16\nGit SHA: none", (3, 6, 16)),
        ("kwok version v0.8.0 go1.26.8 (linux/amd64)", (0, 8, 0)),
        ("containerd github.com/containerd/containerd/v2 v2.3.5 ", (2, 3, 5)),
        ("v4.2.4+g1234567", (4, 2, 4)),
        ("no version here", None),
    ],
)
def test_versions_are_read_from_what_programs_print(printed: str, version: binaries.Version | None) -> None:
    assert binaries.parse_version(printed) == version


def test_the_version_of_go_is_read_from_whatever_bytes_it_prints(tmp_path: Path) -> None:
    program = tmp_path / "go"
    program.write_text("#!/bin/sh\nprintf 'go version go1.26.8 \\377'\n")
    program.chmod(0o755)
    assert build.go_version(str(program)) == (1, 26, 8)


def test_an_unknown_tool_is_answered_with_the_known_ones() -> None:
    with pytest.raises(errors.InputError, match=r"no tool named 'kubctl'; there are: .*kubectl"):
        binaries.named("kubctl")


async def test_a_folder_given_comes_before_path_and_path_before_the_cache(bare: Path, tmp_path: Path) -> None:
    etcd = binaries.ALL["etcd"]
    assert await locate.find(etcd) is None
    kept = build.cached(etcd)
    kept.parent.mkdir(parents=True)
    script(kept, "etcd Version: 3.6.16")
    assert (await locate.find(etcd)).source == "cache"  # type: ignore[union-attr]
    script(bare / "etcd", "etcd Version: 3.5.20")
    assert (await locate.find(etcd)).source == "PATH"  # type: ignore[union-attr]
    given = tmp_path / "given"
    given.mkdir()
    script(given / "etcd", "etcd Version: 3.4.1")
    found = await locate.find(etcd, given)
    assert found is not None
    assert (found.source, found.version) == ("--bin-dir", (3, 4, 1))


@pytest.mark.parametrize("prints", ["etcd Version: 3.5.1", "etcd Version: 3.7.0", "what?"])
async def test_a_program_on_path_that_does_not_fit_is_passed_over(bare: Path, prints: str) -> None:
    script(bare / "etcd", prints)
    assert await locate.find(binaries.ALL["etcd"]) is None


@pytest.mark.usefixtures("bare")
async def test_a_broken_program_in_the_folder_given_is_an_error(tmp_path: Path) -> None:
    script(tmp_path / "etcd", "broken", code=1)
    with pytest.raises(errors.InputError, match=r"--bin-dir: .*etcd does not run"):
        await locate.find(binaries.ALL["etcd"], tmp_path)
    with pytest.raises(errors.InputError, match=r"--bin-dir: .*not a folder"):
        await locate.ensure(["etcd"], progress.Silent(), tmp_path / "missing")


@pytest.mark.usefixtures("bare")
async def test_without_go_the_error_names_the_ways_out() -> None:
    with pytest.raises(errors.SimgpuError) as caught:
        await locate.ensure(["etcd", "kwok"], progress.Silent())
    for way in ("etcd 3.5.13 or newer", "kwok 0.8.0", "install Go", "--mirror", "PATH", "--bin-dir"):
        assert way in str(caught.value)


OLD_GO = """#!/bin/sh
[ "$1" = version ] && { echo "go version go1.19.8 linux/amd64"; exit 0; }
echo "go: errors parsing go.mod: invalid go version '1.26.3': must match format 1.23" >&2
exit 1
"""


async def test_a_go_that_is_too_old_is_named_as_the_reason(bare: Path) -> None:
    go = bare / "go"
    go.write_text(OLD_GO)
    go.chmod(0o755)
    with pytest.raises(
        build.BuildError, match=r"(?s)invalid go version.*go is Go 1\.19\.8; install Go 1\.26\.3 or newer"
    ):
        await build.build([binaries.ALL["etcd"]], progress.Silent(), disk_gib=0.001)


@pytest.mark.parametrize(
    ("minor", "has", "has_not"),
    [
        (34, "DRAConsumableCapacity", "DRADeviceTaintRules"),
        (35, "DRADeviceTaintRules", None),
        (36, "DRADeviceTaintRules", None),
    ],
)
def test_only_gates_that_the_version_knows_are_set(minor: int, has: str, has_not: str | None) -> None:
    gates = components.feature_gates((1, minor, 0)).split(",")
    assert f"{has}=true" in gates
    assert f"{has_not}=true" not in gates


@pytest.mark.parametrize(("nodes", "seconds"), [(1, 40), (1000, 40), (5000, 200)])
def test_leases_last_longer_in_large_fleets(nodes: int, seconds: int) -> None:
    assert components.lease_seconds(nodes) == seconds
    assert nodes * 4 / components.lease_seconds(nodes) <= 100
