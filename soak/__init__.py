"""A soak: a local cluster under load while everything around SimGPU fails, and checks that nothing was lost.

`python -m soak` runs it and writes a report. What is in this package: the plan of faults (`plan`), the faults
themselves (`faults`, with `proxy`, `disk` and `clock`), the load (`load`, `edits`), what is observed (`observing`,
`state`) and the report (`results`, `report`).
"""
