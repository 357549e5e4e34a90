"""Takes the entry point name of another distribution."""
