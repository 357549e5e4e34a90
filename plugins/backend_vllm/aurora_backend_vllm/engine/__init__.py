"""The half that lives inside vLLM: recorder and drafter swaps in the worker, routes in the server.

    API server   AuroraMiddleware   control routes below /aurora, Aurora's request and response fields
    worker       AuroraWorker       a stock worker whose model runner is observed by `StepRecorder`

Needs vLLM, torch and safetensors, and of Aurora the records, the trace file and a trace sink.
"""
