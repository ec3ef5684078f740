"""Grafana dashboards for fleets that are scraped under the dcgm, xpum and collectd identities.

Each module here describes one dashboard by its queries; `grafana` lays panels out. `python -m deploy.dashboards` writes
the JSON files: here, for import into any Grafana, and in the chart, for its sidecar.
"""
