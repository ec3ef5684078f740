"""Asking a Prometheus."""
