"""Drafts with a vLLM that knows nothing of Aurora. Runs alone, in vLLM's environment.

    python stock_vllm.py PLAN.json ANSWERS.json

The plan holds `prompts`, `num_tokens` and `cases`: by name, vLLM's `model` and, if that does not
bring its own, `speculative_config`. The answers hold, for each name, (token ids, drafts after every
step, accepted counts of every step) of each prompt, or else what went wrong.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any


def main(plan_path: str, answers_path: str) -> None:
    """Serve every configuration in a process of its own, for a process holds one engine."""
    from vllm import LLM  # noqa: F401 - slow to import, and so only once

    plan = json.loads(Path(plan_path).read_text())
    answers = {name: in_child(plan, case) for name, case in plan["cases"].items()}
    assert "aurora_core" not in sys.modules
    Path(answers_path).write_text(json.dumps(answers))


def in_child(plan: dict[str, Any], case: dict[str, Any]) -> Any:
    """Return what `serve` does, or a traceback."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            result: Any = serve(plan, case)
        except BaseException:  # whatever it is, the test is to show it
            result = traceback.format_exc()
        with os.fdopen(write, "w") as pipe:
            json.dump(result, pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        told = pipe.read()
    _, status = os.waitpid(child, 0)
    return json.loads(told) if told else f"vLLM ended with status {status}"


def serve(plan: dict[str, Any], case: dict[str, Any]) -> list[Any]:
    """Answer the prompts greedily, one after the other."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        **case,
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
        max_num_seqs=2,
        distributed_executor_backend="uni",
        per_request_spec_decode_metrics="detailed",
        disable_log_stats=False,
    )
    executor: Any = llm.llm_engine.model_executor
    runner = executor.driver_worker.worker.model_runner
    propose = runner.propose_draft_token_ids
    drafts: list[list[int]] = []

    def recorded(*arguments: Any, **options: Any) -> Any:
        proposed = propose(*arguments, **options)
        drafts.append([int(token) for token in proposed[0]])
        return proposed

    runner.propose_draft_token_ids = recorded
    answers = []
    for prompt in plan["prompts"]:
        drafts.clear()
        parameters = SamplingParams(temperature=0, max_tokens=plan["num_tokens"], ignore_eos=True)
        [output] = llm.generate([{"prompt_token_ids": prompt}], parameters)
        completion = output.outputs[0]
        accepted = completion.spec_decode_metrics.per_step_accepted
        answers.append((list(completion.token_ids), list(drafts), list(accepted)))
    return answers


if __name__ == "__main__":
    main(*sys.argv[1:])
