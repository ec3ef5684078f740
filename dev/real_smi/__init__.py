"""NVIDIA's own nvidia-smi on our library: a folder that runs it on a machine that has it, and what it printed there.

The tool is NVIDIA's and not in the tree. `bundle` makes the folder here, with a page for every recording; there,
`views` runs every recorded command on these pages, and `trace` writes down what the tool asks of the library; `compare`
lists what it printed otherwise than recorded. `views` and `trace` need Python's standard library only.
"""
