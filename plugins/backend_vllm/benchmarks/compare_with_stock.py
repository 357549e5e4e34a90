"""Whether clients got what stock vLLM gives without speculation, before, between and after swaps.

    PYTHON plugins/backend_vllm/benchmarks/compare_with_stock.py --target TARGET --run RUN

Reads the traces that a run left, answers their prompts once more with a vLLM that has neither
Aurora nor a drafter, and compares token by token. Greedy requests only. Where an answer differs,
the gap tells how sure stock vLLM was: between a near-tie's two tokens, batches of different sizes
may choose differently.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

from vllm import LLM, SamplingParams, TokensPrompt

from aurora_core.records import NO_DRAFTER, Trace
from aurora_core.trace_file import read_trace


def main() -> None:
    """Compare and print a table."""
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, required=True, help="folder of the target")
    parser.add_argument("--run", type=Path, required=True, help="run directory")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="float32")
    parser.add_argument("--max-traces", type=int, default=100, help="spread over the whole run")
    arguments = parser.parse_args()
    traces = read_greedy(arguments.run / "spool" / "traces", arguments.max_traces)
    stock = LLM(
        model=str(arguments.target),
        dtype=arguments.dtype,
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=16,
        seed=0,
    )
    answers = generate(stock, traces)
    compared: Counter[str] = Counter()
    different: Counter[str] = Counter()
    for trace, answer in zip(traces, answers, strict=True):
        told = trace.token_ids[trace.prompt_len :].tolist()
        drafters = drafters_of(trace)
        compared[drafters] += 1
        if told != answer:
            different[drafters] += 1
            same = common_length(told, answer)
            print(
                f"{trace.trace_id} differs at token {same} of {len(told)}, a gap of "
                f"{gap(stock, trace, same):.4f} in log-probability"
            )
    print("| drafter versions of a request | requests compared | different |")
    print("| --- | --- | --- |")
    for drafters in sorted(compared):
        print(f"| {drafters} | {compared[drafters]} | {different[drafters]} |")
    print(f"| all | {compared.total()} | {different.total()} |")


def read_greedy(folder: Path, number: int) -> list[Trace]:
    """Return complete greedy traces, spread evenly over the run, oldest first."""
    traces = [read_trace(file) for file in sorted(folder.glob("*.safetensors"))]
    greedy = sorted(
        (
            trace
            for trace in traces
            if trace.sampling.temperature == 0 and trace.finish_reason != "abort"
        ),
        key=lambda trace: trace.created,
    )
    step = max(len(greedy) / number, 1.0)
    return [greedy[int(index * step)] for index in range(min(number, len(greedy)))]


def generate(stock: LLM, traces: Sequence[Trace]) -> list[list[int]]:
    """Answer the traces' prompts greedily, each as long as it was."""
    prompts = [TokensPrompt(prompt_token_ids=prompt_of(trace)) for trace in traces]
    parameters = [
        SamplingParams(temperature=0.0, max_tokens=len(trace.token_ids) - trace.prompt_len)
        for trace in traces
    ]
    outputs = stock.generate(prompts, parameters, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def prompt_of(trace: Trace) -> list[int]:
    """Return a trace's prompt."""
    return list(trace.token_ids[: trace.prompt_len].tolist())


def drafters_of(trace: Trace) -> str:
    """Return which drafters served a request, in words."""
    versions = {int(version) for version in trace.steps.version} - {NO_DRAFTER}
    return ("none", "one", "swapped while it ran")[min(len(versions), 2)]


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many tokens two answers have in common from the beginning."""
    pairs = zip(first, second, strict=False)
    return next(
        (index for index, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second))
    )


def gap(stock: LLM, trace: Trace, position: int) -> float:
    """Return by how much stock vLLM prefers its own token to the trace's after the same tokens."""
    end = trace.prompt_len + position
    parameters = SamplingParams(temperature=0.0, max_tokens=1, logprobs=20)
    prompt = TokensPrompt(prompt_token_ids=list(trace.token_ids[:end].tolist()))
    output = stock.generate([prompt], [parameters], use_tqdm=False)[0].outputs[0]
    assert output.logprobs is not None
    ranked = output.logprobs[0]
    told = ranked.get(int(trace.token_ids[end]))
    best = max(one.logprob for one in ranked.values())
    return best - told.logprob if told is not None else float("inf")


if __name__ == "__main__":
    main()
