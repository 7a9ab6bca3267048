"""Lease stores: the conformance suite on each of them, and the faults of files, servers and networks."""
