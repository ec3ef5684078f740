"""`python -m simgpu` is the `simgpu` command."""

from simgpu import cli

if __name__ == "__main__":
    cli.main()
