"""Measurements, one module each, and what they share."""
