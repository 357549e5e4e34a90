"""Errors a user can cause. The CLI prints the message alone and exits with code 2.

A message is one sentence (a table may follow): what is wrong, where, and what exists or what to do.
"""


class AuroraError(Exception):
    """Base of every error whose message is meant for the user."""


class ConfigError(AuroraError):
    """The configuration cannot be used as written."""


class PluginError(AuroraError):
    """A plugin is missing, broken or in conflict with another."""


class TargetError(AuroraError):
    """The target model cannot be obtained, read or served."""


class TraceError(AuroraError):
    """A trace or a trace sink cannot be read or written."""


class CheckpointError(AuroraError):
    """A drafter checkpoint is incomplete, malformed or made for something else."""


class BackendError(AuroraError):
    """A serving engine does not start, does not answer or refuses a request."""
