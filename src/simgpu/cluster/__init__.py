"""The local cluster: a real control plane and KWOK as plain processes on this machine.

Finds, downloads or builds the programs, starts and monitors the processes, and creates the simulated nodes. Their GPUs
are left to the controller.
"""
