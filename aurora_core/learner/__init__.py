"""The learner: a process of its own that trains a drafter on traces and publishes versions.

`plan` and `protocol` import without torch; the controller uses them. Everything else runs in the
learner process, `python -m aurora_core.learner PLAN.json`.
"""
