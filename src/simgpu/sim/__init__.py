"""How devices behave: demand in, utilisation, clocks, power, heat and counters out.

Pure numpy over arrays. No input or output, no clock, no threads: time and randomness come in as arguments, so the
same seed and events give the same bytes.
"""
