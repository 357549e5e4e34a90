"""The half that lives inside vLLM: a recorder and drafter swaps, control routes and fields.

    API server  `AuroraMiddleware`  control routes below /aurora, fields of requests and responses
    worker      `AuroraWorker`      a stock worker whose model runner `StepRecorder` observes

Needs vLLM, torch and safetensors, and of Aurora the records, the trace file and a trace sink.
"""
