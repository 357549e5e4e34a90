"""The controller: one task group that serves, learns and swaps. Imports no torch.

run.py                 the picture of who waits for what; `run` and `Run`
build.py               the composition root: config and plugins -> parts and plans
run_directory.py       the folder of a run: lock, state, append-only records
learner_process.py     the learner as a child: start, restart, listen, stop
swapping.py            published -> judged -> swapped
evidence.py            what live traffic says about each version
requests_log.py        finished requests, once a second
traffic.py             the run's own requests
final_measurement.py   the speed-up at the end
serve_only.py          an engine without learning, for `aurora bench` and `aurora replay`
"""
