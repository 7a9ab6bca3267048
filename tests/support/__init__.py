"""Real servers, a faulty network and a silent name service for the tests. Never imported by the package."""
