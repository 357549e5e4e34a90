"""The four components a plugin can provide, and the drafter a speculator hands to an engine.

Components are found by hook (`aurora_core.hookspecs`), selected by name in the configuration and
built from their own validated options. Modules that define components import without torch: the
controller builds them too. Import torch inside the methods that need it.

    component     what all four share: a class with options of its own
    speculator    what to record, how to learn from it
    drafter       how to draft: what a speculator hands to an engine
    backend       a serving engine
    serve_plan    what an engine is told at start
    trace_sink    the buffer between serving and learning, and its two ends
    swap_policy   whether new weights go live

All names are imported from this package; its modules import from each other.
"""

from aurora_core.interfaces.backend import Backend
from aurora_core.interfaces.component import Component, Options
from aurora_core.interfaces.drafter import DraftDistributions, Drafter, DraftRequest, Proposal
from aurora_core.interfaces.serve_plan import LineagePlan, ServePlan
from aurora_core.interfaces.speculator import LossOutput, Speculator
from aurora_core.interfaces.swap_policy import SwapPolicy
from aurora_core.interfaces.trace_sink import TraceReader, TraceSink, TraceWriter

__all__ = [
    "Backend",
    "Component",
    "DraftDistributions",
    "DraftRequest",
    "Drafter",
    "LineagePlan",
    "LossOutput",
    "Options",
    "Proposal",
    "ServePlan",
    "Speculator",
    "SwapPolicy",
    "TraceReader",
    "TraceSink",
    "TraceWriter",
]
