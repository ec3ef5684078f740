"""Scripts for whoever works in a clone: set-up, without anything installed, and runs of NVIDIA's own tool elsewhere."""
