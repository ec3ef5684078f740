"""Compatibility with fakedev-exporter and fakedev-workload: their options, files, metrics page and HTTP answers."""
