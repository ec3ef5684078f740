"""Scenario files: read, rendered and checked as a whole before anything is created."""
