"""Kubernetes without GPUs: authentication, client, views and (on top of them) everything a controller needs.

Nothing here knows about devices; the package could be published alone. It is one of the few places that
may speak HTTP.
"""
