"""`python -m simgpu` is the `simgpu` command."""

from simgpu.cli import main

if __name__ == "__main__":
    main.main()
