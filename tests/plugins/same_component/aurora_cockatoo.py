from aurora_core import hookimpl
from aurora_core.records import Registration


@hookimpl
def aurora_register_speculators():
    yield Registration("parrot", "aurora_cockatoo:Cockatoo", "repeats it louder")
