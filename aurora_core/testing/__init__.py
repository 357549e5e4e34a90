"""What plugin authors and Aurora's own tests build on: conformance suites, fakes, tiny models."""
