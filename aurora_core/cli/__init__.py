"""The command line. Importing this package, listing plugins and showing help import no torch."""

from aurora_core.cli.application import main

__all__ = ["main"]
