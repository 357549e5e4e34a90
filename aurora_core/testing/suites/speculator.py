"""The whole suite of a speculator."""

from __future__ import annotations

from aurora_core.testing.suites.speculator_checkpoint import CheckpointPromises
from aurora_core.testing.suites.speculator_drafting import DraftingPromises
from aurora_core.testing.suites.speculator_sampling import SamplingPromises
from aurora_core.testing.suites.speculator_serving import ServingPromises
from aurora_core.testing.suites.speculator_supervision import SupervisionPromises
from aurora_core.testing.suites.speculator_tree import TreePromises


class SpeculatorSuite(
    DraftingPromises,
    SamplingPromises,
    SupervisionPromises,
    CheckpointPromises,
    ServingPromises,
    TreePromises,
):
    """Promises of `Speculator` and `Drafter`. On a CPU, without an engine, in some seconds.

    Subclass it under a name that begins with `Test`, and override the fixture `speculator`.
    Speculators that do not learn by gradients run the drafting part, those that draft no trees all
    but the tree part; what is left out is shown as skipped, with the reason.
    """
