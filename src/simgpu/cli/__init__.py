"""The `simgpu` command: reads flags, calls one function of the layers below, shows the result.

Heavy modules are imported inside the commands, so that `--help` answers at once.
"""
