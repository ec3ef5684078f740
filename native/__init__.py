"""The programs in C, and what builds them."""
