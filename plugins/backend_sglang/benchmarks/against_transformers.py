"""Whether every greedy answer in a spool is the one that Hugging Face's model gives.

    python plugins/backend_sglang/benchmarks/against_transformers.py TARGET RUN_DIR/spool --most 40

One forward pass over each trace, in float32: every output token must be the likeliest one after the
tokens before it, or as likely within `--tolerance` of a logit, which counts as a near-tie.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from aurora_core.trace_file import read_trace


def main() -> None:
    """Compare, and print the counts so far after every trace."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("spool", type=Path)
    parser.add_argument("--most", type=int, default=40, help="traces, spread over the run")
    parser.add_argument("--tolerance", type=float, default=1e-3)
    settings = parser.parse_args()
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(settings.target, dtype=torch.float32).eval()
    paths = sorted((settings.spool / "traces").glob("*.safetensors"))
    counts = {"traces": 0, "tokens": 0, "same": 0, "near_ties": 0, "mismatches": 0}
    for path in paths[:: max(1, len(paths) // settings.most)][: settings.most]:
        trace = read_trace(path)
        if trace.sampling.temperature:
            continue
        tokens, first = trace.token_ids, trace.prompt_len
        with torch.inference_mode():
            logits = model(tokens[None, :-1]).logits[0, first - 1 :]
        output = tokens[first:]
        gaps = logits.max(-1).values - logits.gather(1, output[:, None])[:, 0]
        counts["traces"] += 1
        counts["tokens"] += output.numel()
        counts["same"] += int((gaps == 0).sum())
        counts["near_ties"] += int(((gaps > 0) & (gaps <= settings.tolerance)).sum())
        counts["mismatches"] += int((gaps > settings.tolerance).sum())
        print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    main()
