/* Nothing: a library that can be loaded before all others, and changes nothing. */
