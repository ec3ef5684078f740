"""Workloads: their documents, the socket protocol, its server and its client."""
