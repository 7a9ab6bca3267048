"""`python -m claimant.cli`, for where the `claimant` script is not on the path."""

from claimant.cli.main import main

main()
