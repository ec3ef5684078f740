"""How devices behave: demand in, utilisation, clocks, power, temperature and counters out.

Pure numpy over arrays. No I/O, no clock, no threads: time and randomness are arguments, so the same seed and events
give the same bytes.
"""
