"""HTTP server and views: metrics pages, health, JSON."""
