"""Makes the image: `python -m deploy.image [--platform amd64] [--output FILE]`; `make image` calls it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

import simgpu
from deploy.image import contents, debian, oci

ROOT = Path(__file__).parents[2]


@click.command()
@click.option(
    "--platform", "platforms", type=click.Choice([*oci.PLATFORMS.values()]), multiple=True,
    default=tuple(oci.PLATFORMS.values()), show_default=True, help="Processors that the image is for.",
)  # fmt: skip
@click.option("--tag", default=contents.NAME, show_default=True, help="Name of the image.")
@click.option(
    "--output", type=click.Path(path_type=Path), default=ROOT / "dist" / f"simgpu-{simgpu.__version__}-image.tar",
    help="The archive.  [default: dist/simgpu-VERSION-image.tar]",
)  # fmt: skip
def main(platforms: tuple[str, ...], tag: str, output: Path) -> None:
    """Make the container image without Docker: an OCI archive, from Debian packages and our wheel."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        wheel = build_wheel(scratch)
        images = []
        for platform in platforms:
            click.echo(f"{tag} for {platform}", err=True)
            try:
                images.append(contents.image(wheel, scratch, platform))
            except debian.UnavailableError as error:
                raise click.ClickException(str(error)) from None
        output.parent.mkdir(parents=True, exist_ok=True)
        oci.write(output, {tag: images})
    sizes = {image.platform: sum(layer.size for layer in image.layers) for image in images}
    described = ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in sizes.items())
    click.echo(f"{output}: {tag}, {described} ({time.monotonic() - started:.1f} s)")


def build_wheel(folder: Path) -> Path:
    """Build our package as users get it; return the file."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (found,) = folder.glob("*.whl")
    return found


if __name__ == "__main__":
    main()
