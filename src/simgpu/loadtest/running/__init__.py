"""A run of a scenario: namespaces, phases, steps, and the end of all of it."""
