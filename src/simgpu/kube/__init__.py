"""Kubernetes without GPUs: authentication, client, typed views, and what a controller builds on them.

Nothing here knows about devices; the package could be published alone. It is one of the few places that
may use HTTP.
"""
