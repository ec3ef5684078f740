"""How a device is named to Prometheus: one file for each exporter that is mimicked, and the renderer."""
