"""Floor 5: the command line. It prints what the library returns, and decides nothing itself."""

from claimant.cli.main import main

__all__ = ["main"]
