"""The local cluster: a real control plane and KWOK as plain processes on this machine.

Finds or builds the binaries, starts and watches the processes, and fills the cluster with simulated nodes.
What the nodes' GPUs do is none of its business.
"""
