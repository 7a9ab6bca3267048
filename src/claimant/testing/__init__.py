"""For tests: conformance suites for stores, guards and ledgers, and fixtures for jobs. Ships with the wheel."""
