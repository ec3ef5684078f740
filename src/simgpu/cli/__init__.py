"""The `simgpu` command: parses options, calls one function of the layers below, prints the result.

Heavy modules are imported inside the commands, so that `--help` is fast.
"""
