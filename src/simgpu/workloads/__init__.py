"""Workloads: the socket protocol, its server and its client."""
