"""The whole suite of a backend."""

from __future__ import annotations

from aurora_core.testing.suites.backend_learning import RecordingPromises
from aurora_core.testing.suites.backend_lifecycle import LifecyclePromises
from aurora_core.testing.suites.backend_lineages import LineagePromises
from aurora_core.testing.suites.backend_output import OutputPromises
from aurora_core.testing.suites.backend_swapping import SwappingPromises


class BackendSuite(
    LifecyclePromises, SwappingPromises, OutputPromises, RecordingPromises, LineagePromises
):
    """Promises of `Backend`, through its methods and its HTTP API alone.

    Subclass it under a name that begins with `Test`, and override the fixture `backend`. One engine
    is started for most of the tests, and one more for those of start and stop.
    """
