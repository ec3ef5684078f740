"""The state page: the state of a simulated GPU for programs on its machine. One table defines dtype and C header."""
