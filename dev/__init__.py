"""Scripts for whoever works in a clone: set-up, without anything installed."""
