"""Floor 2, lowest part: interpreters that carry out what flows ask for, and the threads they need."""
