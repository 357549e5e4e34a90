"""Experiments on whole runs: `aurora experiment`. Imports no torch.

    shift.py          several arms answer the same streams of changing domains, one after the other
      arms.py           what differs between them
      streams.py        what is sent
      arm_run.py        one arm: serve, send, write down
      results.py        what is written down, and read again
      figures.py        windows, intervals, recovery: pure functions of it
      comparison.py     the same for two arms, request by request
      summary.py        all figures of a stream
      table.py, page.py for people
    storm.py          swaps every few seconds while eight requests decode
      storm_report.py   what that is measured by
    unpredictable.py  random text: what speculation costs where it can bring nothing
    poison.py         spoiled versions, published on purpose
    served_run.py     `aurora run` as a child process
      server_gone.py    when it is given up
    plain_answers.py  what every answer must be equal to

Every request goes the way that all requests go: over HTTP to an engine in a process of its own,
beside a learner in another, both of them children of `aurora run`.
"""
