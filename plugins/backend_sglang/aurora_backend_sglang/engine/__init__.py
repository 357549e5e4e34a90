"""The half that lives inside SGLang, through its plugin hooks; no file of SGLang is changed.

    every process   plugin.activate     registers the hooks, if Aurora's settings are there
    scheduler       recorder            follows requests, hands traces to the sink
                    drafter_swap        turns "version 7" into tensors within a weight update
                    status              a section `aurora` in SGLang's own `/server_info`

SGLang logs an error of a plugin and goes on without it. So the section in `/server_info` is also
how the controller learns that every hook is in place.

Needs SGLang, torch and safetensors, and of Aurora the records, the trace file and a trace sink.
"""
