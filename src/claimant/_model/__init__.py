"""Floor 0: frozen values. Nothing here performs I/O, reads a clock or draws a random number."""
