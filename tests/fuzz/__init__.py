"""The level that tries every input from outside with inputs that coverage guides: see `__main__` for long runs."""
