"""How a device is presented to Prometheus: one file per mimicked exporter, and the renderer."""
