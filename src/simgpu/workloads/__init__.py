"""Workloads that connect: their documents, the socket protocol, the server and the client."""
