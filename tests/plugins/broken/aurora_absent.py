import aurora_nowhere  # noqa: F401 - a dependency that is not installed
