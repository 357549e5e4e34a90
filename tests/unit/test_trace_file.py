"""Trace files: what is written comes back, and what is damaged is refused in one sentence."""

from __future__ import annotations

import dataclasses
import json
import stat
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from aurora_core.errors import TraceError
from aurora_core.records import NO_DRAFTER, Sampling, Trace
from aurora_core.testing.traces import make_trace
from aurora_core.trace_file import (
    decode_trace,
    encode_trace,
    read_trace,
    trace_metadata,
    validate_trace,
    write_trace,
)

traces = st.builds(
    make_trace,
    st.integers(0, 10_000),
    vocab_size=st.integers(4, 30),
    prompt_len=st.integers(1, 4),
    num_steps=st.integers(0, 5),
    num_speculative_tokens=st.integers(0, 4),
    version=st.integers(-1, 3),
    topology=st.sampled_from(["chain", "tree"]),
    branch_rows=st.booleans(),
    accept=st.floats(0, 1),
    features=st.sets(
        st.sampled_from(["aux_hidden_states", "last_hidden_state", "target_logsumexp"])
    ),
)


def assert_equal(left: Trace, right: Trace) -> None:
    for field in dataclasses.fields(Trace):
        one, other = getattr(left, field.name), getattr(right, field.name)
        if field.name == "features":
            assert one.keys() == other.keys()
            assert all(torch.equal(one[name], other[name]) for name in one)
            assert all(one[name].dtype == other[name].dtype for name in one)
        elif field.name == "token_ids":
            assert torch.equal(one, other)
        elif field.name in ("steps", "nodes", "rows"):
            for column in dataclasses.fields(one):
                first, second = getattr(one, column.name), getattr(other, column.name)
                assert torch.equal(first, second) and first.dtype == second.dtype
        else:
            assert one == other


@settings(max_examples=60, deadline=None)
@given(traces)
def test_any_valid_trace_comes_back_equal(trace):
    validate_trace(trace)
    assert_equal(trace, decode_trace(encode_trace(trace), name="memory"))


def test_metadata_fields_come_back_equal(tmp_path):
    sampling = Sampling(temperature=0.7, top_p=0.9, top_k=5, seed=3, rule="rejection")
    trace = make_trace(
        1,
        sampling=sampling,
        finish_reason="abort",
        created=1234.5,
        tenant="t",
        route="r",
        request_key="key",
        trace_id="id",
        version=[NO_DRAFTER, 4, 4, 5, 5],
    )
    write_trace(trace, tmp_path / "t.safetensors")
    assert_equal(trace, read_trace(tmp_path / "t.safetensors"))
    metadata = trace_metadata(tmp_path / "t.safetensors")
    assert (metadata.trace_id, metadata.request_key, metadata.created) == ("id", "key", 1234.5)
    assert (metadata.min_draft_version, metadata.max_draft_version) == (4, 5)
    assert (metadata.num_tokens, metadata.sampling) == (trace.token_ids.numel(), sampling)


def test_tensors_that_share_memory_are_written_separately(tmp_path):
    trace = make_trace(0)
    milliseconds = torch.rand(trace.steps.root.numel())
    steps = dataclasses.replace(trace.steps, draft_ms=milliseconds, verify_ms=milliseconds)
    rows = torch.randn(3 * len(trace.rows.position), 8)[::3]
    trace = dataclasses.replace(trace, steps=steps, features={"last_hidden_state": rows})
    write_trace(trace, tmp_path / "t.safetensors")
    assert_equal(trace, read_trace(tmp_path / "t.safetensors"))
    assert (tmp_path / "t.safetensors").stat().st_size < 16 * 1024  # and none of the rest


def test_only_the_owner_can_read_a_trace_file(tmp_path):
    path = tmp_path / "t.safetensors"
    write_trace(make_trace(0), path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_metadata_is_read_without_torch(tmp_path):
    path = tmp_path / "t.safetensors"
    write_trace(make_trace(0, trace_id="abc"), path)
    code = (
        "import sys, pathlib; from aurora_core.trace_file import trace_metadata;"
        f"print(trace_metadata(pathlib.Path({str(path)!r})).trace_id, 'torch' in sys.modules)"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert output.stdout.split() == ["abc", "False"], output.stderr


def test_missing_file_is_refused_by_name(tmp_path):
    for read in (read_trace, trace_metadata):
        with pytest.raises(TraceError, match=r"nothing\.safetensors' cannot be read: No such file"):
            read(tmp_path / "nothing.safetensors")


@pytest.mark.parametrize("keep", [0, 5, 8, 40, 600, -1])
def test_truncated_file_is_refused_by_name(tmp_path, keep):
    path = tmp_path / "cut.safetensors"
    path.write_bytes(encode_trace(make_trace(0))[:keep])
    for read in (read_trace, trace_metadata):
        with pytest.raises(TraceError, match=r"cut\.safetensors'.* cut short"):
            read(path)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_flipped_bytes_never_crash_the_reader(data):
    content = bytearray(encode_trace(make_trace(0, num_steps=2, hidden_size=2)))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        validate_trace(decode_trace(bytes(content), name="flipped"))
    except TraceError as error:
        assert "flipped" in str(error)


@given(st.binary(max_size=200))
def test_noise_is_refused(content):
    with pytest.raises(TraceError, match="noise"):
        decode_trace(content, name="noise")


def test_safetensors_file_of_another_kind_is_refused():
    with pytest.raises(TraceError, match="'weights' is not a trace file"):
        decode_trace(save({"weight": torch.zeros(2)}), name="weights")


def rewrite(content: bytes, *, drop: str = "", metadata: dict[str, object] | None = None) -> bytes:
    """Return the file with a tensor less, or with other metadata."""
    length = int.from_bytes(content[:8], "little")
    plain = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["aurora_trace"])
    tensors = load(content)
    tensors.pop(drop, None)
    return save(tensors, {"aurora_trace": json.dumps(plain | (metadata or {}))})


def test_unknown_schema_is_refused_before_anything_else():
    content = rewrite(encode_trace(make_trace(0)), metadata={"schema": 2, "sampling": "new"})
    with pytest.raises(TraceError, match="'new' has schema 2, this version reads schema 1"):
        decode_trace(content, name="new")


def test_missing_tensor_is_named():
    content = rewrite(encode_trace(make_trace(0)), drop="nodes.parent")
    with pytest.raises(TraceError, match=r"'f' lacks the tensor 'nodes\.parent'"):
        decode_trace(content, name="f")


def test_unfit_metadata_is_named():
    content = rewrite(encode_trace(make_trace(0)), metadata={"prompt_len": "many"})
    with pytest.raises(TraceError, match="'f' has unfit metadata: prompt_len"):
        decode_trace(content, name="f")


def test_inconsistent_lengths_are_named(tmp_path):
    trace = make_trace(0)
    steps = dataclasses.replace(trace.steps, version=trace.steps.version[:-1])
    write_trace(dataclasses.replace(trace, steps=steps), tmp_path / "f")
    with pytest.raises(TraceError, match=r"f' is inconsistent: steps\.version has 4 entries"):
        read_trace(tmp_path / "f")


def broken(trace: Trace, group: str, column: str, index: int, value: int) -> Trace:
    """Return the trace with one entry changed."""
    record = getattr(trace, group) if group else trace
    changed = getattr(record, column).clone()
    changed[index] = value
    changed_record = dataclasses.replace(record, **{column: changed})
    return dataclasses.replace(trace, **{group: changed_record}) if group else changed_record


# Every step accepts its first two nodes and rejects the third; T = 2 + 2 * 3.
BASE = make_trace(0, prompt_len=2, num_steps=2, num_speculative_tokens=2, accept=1.0)
REJECTED = make_trace(0, prompt_len=2, num_steps=2, num_speculative_tokens=2, accept=0.0)
BRANCHES = make_trace(
    0, prompt_len=2, num_steps=2, num_speculative_tokens=2, accept=0.0, branch_rows=True
)


@pytest.mark.parametrize(
    ("trace", "problem"),
    [
        (dataclasses.replace(BASE, schema=7), "its schema is 7"),
        (dataclasses.replace(BASE, prompt_len=0), "prompt_len is 0 for 8 tokens"),
        (dataclasses.replace(BASE, prompt_len=9), "prompt_len is 9 for 8 tokens"),
        (broken(BASE, "", "token_ids", 0, -1), "token_ids holds negative"),
        (dataclasses.replace(BASE, token_ids=BASE.token_ids.int()), r"token_ids is int32 \[8\]"),
        (broken(BASE, "steps", "root", 0, 0), "root lies outside the response"),
        (broken(BASE, "steps", "root", 1, 8), "root lies outside the response"),
        (broken(BASE, "steps", "root", 1, 3), "steps overlap"),
        (broken(BASE, "steps", "version", 0, -2), "version holds a number below -1"),
        (broken(BASE, "steps", "num_accepted", 0, 1), "num_accepted differs from the accepted"),
        (broken(BASE, "steps", "bonus_token", 1, 64), "bonus_token is not the committed token"),
        (broken(BASE, "nodes", "step", 3, 2), "names a step outside the 2 steps"),
        (broken(BASE, "nodes", "step", 1, 1), r"nodes\.parent names a node of another step"),
        (broken(BASE, "nodes", "step", 2, 0), r"names a node of another step"),
        (broken(BASE, "nodes", "step", 0, 1), r"nodes\.step decreases"),
        (broken(BASE, "nodes", "token", 0, 64), "accepted node's token is not the committed one"),
        (broken(BASE, "nodes", "parent", 1, 1), "does not name an earlier node"),
        (broken(BASE, "nodes", "parent", 0, -2), "does not name an earlier node"),
        (broken(BASE, "nodes", "depth", 1, 1), "depth is not one more than the parent's"),
        (broken(BASE, "nodes", "accepted", 0, 0), "accepted node hangs below a rejected one"),
        (broken(REJECTED, "nodes", "accepted", 1, 1), "accepted node hangs below a rejected one"),
        (broken(BASE, "rows", "position", 0, -1), "either a position or a node"),
        (broken(BASE, "rows", "node", 0, 0), "either a position or a node"),
        (broken(BASE, "rows", "position", 0, 8), "position lies beyond the last token"),
        (broken(BASE, "rows", "position", 0, 1), "two rows to one position"),
        (broken(BRANCHES, "rows", "node", -1, 4), "names a node outside the 4 nodes"),
        (broken(BRANCHES, "rows", "node", -1, 0), "two rows to one position or node"),
        (dataclasses.replace(BASE, features={"x": torch.zeros(2)}), "'x' is float32 .* 7 rows"),
        (
            dataclasses.replace(BASE, features={"x": torch.zeros(7).int()}),
            "instead of floating point",
        ),
        (dataclasses.replace(BASE, aux_layers=(1, 2, 3, 4, 5)), "for 5 aux_layers"),
        (
            dataclasses.replace(BASE, features={"last_hidden_state": torch.zeros(7)}),
            r"last_hidden_state is float32 \[7\], not",
        ),
        (
            dataclasses.replace(BASE, features={"target_logsumexp": torch.zeros(7).double()}),
            "target_logsumexp is float64",
        ),
    ],
)
def test_broken_promise_is_named(trace, problem):
    with pytest.raises(TraceError, match=problem):
        validate_trace(trace)


def test_rows_of_accepted_nodes_are_refused():
    trace = make_trace(0, prompt_len=2, num_steps=1, num_speculative_tokens=1, accept=1.0)
    rows = dataclasses.replace(
        trace.rows, position=torch.tensor([0, 1, -1]), node=torch.tensor([-1, -1, 0])
    )
    with pytest.raises(TraceError, match="accepted nodes are positions"):
        validate_trace(dataclasses.replace(trace, rows=rows))


def test_two_accepted_siblings_are_refused():
    trace = make_trace(0, prompt_len=2, num_steps=1, num_speculative_tokens=2, accept=1.0)
    nodes = dataclasses.replace(
        trace.nodes, parent=torch.tensor([-1, -1]), depth=torch.tensor([1, 1])
    )
    with pytest.raises(TraceError, match="two nodes of one depth"):
        validate_trace(dataclasses.replace(trace, nodes=nodes))


def test_last_step_may_be_cut_by_the_end_of_the_request():
    cut = dataclasses.replace(
        BASE,
        token_ids=BASE.token_ids[:-2],
        rows=dataclasses.replace(
            BASE.rows, position=BASE.rows.position[:-2], node=BASE.rows.node[:-2]
        ),
        features={name: feature[:-2] for name, feature in BASE.features.items()},
    )
    validate_trace(cut)


def test_trees_branch_and_have_rejected_rows():
    trace = make_trace(3, topology="tree", num_speculative_tokens=4, branch_rows=True)
    parents = trace.nodes.parent.tolist()
    siblings = {(trace.nodes.step[i].item(), parent) for i, parent in enumerate(parents)}
    assert len(siblings) < len(parents)
    assert int((trace.rows.node >= 0).sum()) == int((~trace.nodes.accepted).sum()) > 0


def test_equal_seeds_make_equal_traces():
    one, other = make_trace(7, trace_id="x", created=0.0), make_trace(7, trace_id="x", created=0.0)
    assert_equal(one, other)
    assert not torch.equal(one.token_ids, make_trace(8).token_ids)
