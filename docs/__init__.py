"""Documentation, and what generates parts of it."""
