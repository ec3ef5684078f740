"""HTTP views: metrics pages, health, JSON."""
