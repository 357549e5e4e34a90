"""A process that writes traces until it is killed: `python -m ... MODULE CLASS OPTIONS`."""

from __future__ import annotations

import importlib
import sys
import time
from typing import cast

from aurora_core.interfaces import TraceSink
from aurora_core.testing.traces import make_trace


def main(module: str, name: str, options: str) -> None:
    """Write, and print a line with what the writer says it kept; never ends."""
    component = cast("type[TraceSink]", getattr(importlib.import_module(module), name))
    sink = component(component.Config.model_validate_json(options))
    writer = sink.open_writer()
    while True:
        writer.put(make_trace())
        print(writer.stats().kept, flush=True)
        time.sleep(0.002)  # there is no need to fill the disk


if __name__ == "__main__":
    main(*sys.argv[1:])
