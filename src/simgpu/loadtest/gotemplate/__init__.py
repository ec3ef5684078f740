"""Go's text/template as ClusterLoader2 uses it: variables, if, range, with, pipelines, and functions.

Named templates (`define`, `template`, `block`) and method calls are rejected. Rendering is bounded in depth, steps and
output, and text that comes from variables cannot add structure to the YAML around it.
"""
