"""The controller: one task group that serves, learns and swaps. Imports no torch.

run.py                 the picture of who waits for what; `run` and `Run`
build.py               the composition root: config and plugins -> parts and plans
run_directory.py       the folder of a run: lock, append-only records, whole files
learner_process.py     the learner as a child: start, restart, listen, stop, reap
learning.py            what the learner says, passed on
swapping.py            published -> judged -> swapped
evidence.py            what live traffic says about each version
requests_log.py        finished requests, once a second
traffic.py             the run's own requests, and the losslessness check
final_measurement.py   the speed-up at the end
outcome.py             how a run ended, and the facts of its report
observers.py           core's own observers, registered like plugins
serve_only.py          an engine without learning, for `aurora bench`
background.py, signals.py   two small tools of `run.py`
"""
