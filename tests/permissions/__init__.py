"""Each permission is needed: what accounts do, and whether it is noticed that one of their permissions is missing."""
