"""The state page: what a simulated GPU shows to programs on its machine. One table, and from it dtype and C header."""
