"""Which devices exist: data files and the structs that they are read into.

GPU models with their figures, MIG tables and workload shapes. The behaviour of devices is in `sim`.
"""
