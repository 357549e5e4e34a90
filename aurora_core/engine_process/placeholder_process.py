"""Makes a placeholder drafter; the process behind `make_placeholder`.

    python -m aurora_core.engine_process.placeholder_process PLAN.json FOLDER

The last line on stderr is the reason when it fails.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from aurora_core.errors import AuroraError
from aurora_core.interfaces import ServePlan
from aurora_core.process_failure import USER_ERROR
from aurora_core.wire import from_json


def main(arguments: Sequence[str]) -> int:
    """Make the placeholder of the plan named on the command line; return the exit status."""
    plan = from_json(ServePlan, Path(arguments[0]).read_bytes())
    try:
        _write(plan, Path(arguments[1]))
    except AuroraError as error:
        sys.stderr.write(" ".join(str(error).split()) + "\n")
        return USER_ERROR
    return 0


def _write(plan: ServePlan, folder: Path) -> None:
    import torch

    from aurora_core.components import build_component
    from aurora_core.config import ComponentSection
    from aurora_core.plugins import Plugins
    from aurora_core.target.weights import TargetWeights

    torch.manual_seed(plan.seed)
    plugins = Plugins()
    plugins.load(plan.plugins)
    section = ComponentSection.model_validate({"name": plan.speculator, **plan.speculator_options})
    speculator = build_component(plugins, "speculators", section, target=plan.target)
    module = speculator.build_module(TargetWeights(plan.target), ())
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    speculator.save(module, partial)
    partial.rename(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
