from aurora_core import hookimpl
from aurora_core.records import Registration


@hookimpl
def aurora_register_speculator():
    yield Registration("typo", "aurora_typo:Typo")
