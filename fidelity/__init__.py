"""A simulated card beside a recorded one: `make fidelity`."""
