"""Floor 1: texts in each dialect, and which connection this is. Imports no driver; looks only at what is loaded."""
