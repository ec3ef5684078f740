"""Load tests: ClusterLoader2 scenarios on simulated GPUs, what they measure, and their reports.

It speaks with a cluster only through `kube`, and knows nothing of the simulation.
"""
