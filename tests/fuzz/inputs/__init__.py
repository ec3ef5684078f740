"""What is tried in Python: one module for each part of the project that reads what others write."""
