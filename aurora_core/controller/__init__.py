"""The controller: one task group that serves, learns and swaps. Imports no torch.

run.py                 the picture of who waits for what; `run` and `Run`
build.py               the composition root: config and plugins -> parts and plans
announcement.py        the banner and resolved.yaml
run_directory.py       the folder of a run: lock, append-only records, whole files
record_file.py         append-only records that a full disk cannot make fail
bookkeeping.py         which versions are in use, written down; old ones deleted
learner_process.py     the learner as a child: start, restart, listen, stop, reap
learner_log.py         its log file
learning.py            what the learner says, passed on
swapping.py            published -> judged -> swapped, and what the engine did by itself
swap_gaps.py           the pauses that clients saw at swaps
evidence.py            what live traffic says about each version
drift.py               a fall of the acceptance, noticed; rebuilt from requests.jsonl
earlier_run.py         what the records of earlier runs tell
requests_log.py        finished requests, once a second
trace_counts.py        traces kept and shed
traffic.py             the run's own requests, and the losslessness check
final_measurement.py   the speed-up at the end
outcome.py             how a run ended, and the facts of its report
observers.py           core's own observers, registered like plugins
serve_only.py          an engine without learning, for `aurora bench`
background.py, signals.py   two small tools of `run.py`
"""
