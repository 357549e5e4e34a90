"""Registrations only; importing this module must stay cheap."""

import typer

from aurora_core import hookimpl
from aurora_core.records import Registration


@hookimpl
def aurora_register_speculators():
    yield Registration("parrot", "aurora_parrot.speculator:Parrot", "repeats the last token")


@hookimpl
def aurora_register_swap_policies():
    yield Registration("moody", "aurora_parrot.policy:Moody", "holds")
    yield Registration("vanished", "aurora_parrot.policy:Vanished")
    yield Registration("impostor", "aurora_parrot.policy:Impostor")
    yield Registration("unfinished", "aurora_parrot.policy:Unfinished")


@hookimpl
def aurora_register_commands(app: typer.Typer):
    @app.command()
    def squawk() -> None:
        """Say something."""
        print("squawk")
