"""What a scenario needs before its steps: simulated nodes, their GPUs, and KWOK."""
