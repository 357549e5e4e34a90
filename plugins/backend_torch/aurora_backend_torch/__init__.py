"""The embedded engine: a target and its drafters in one torch process, served over HTTP."""
