"""Floor 1: every decision, written once, as generators that yield requests and receive replies."""
