"""The run-time model: machines with devices that an engine simulates, and their users. Pure: time is an argument."""
