"""The run-time model: machines with devices that an engine moves, and who uses them. Pure: time is an argument."""
