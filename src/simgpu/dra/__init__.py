"""GPUs in dynamic resource allocation, as data: devices, slices, counters, taints, claims and their configuration.

Pure: nothing here reads a clock, a file or a socket. Who writes slices and follows claims is in `controllers`, and who
prepares claims on a real node in `node`.
"""
