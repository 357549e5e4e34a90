"""Every output row is the same to the last bit whatever else is in the batch."""

from __future__ import annotations

import pytest
import torch

from aurora_core import kernels
from aurora_core.kernels import Decoder, DecoderShape, LayerWeights, RowPlan

pytestmark = pytest.mark.skipif(not kernels.compiled(), reason="numba is not installed")

SHAPE = DecoderShape(
    hidden_size=64, intermediate_size=96, num_heads=4, num_kv_heads=2, head_dim=16,
    rms_norm_epsilon=1e-5,
)  # fmt: skip


def random(*size: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 25])
def test_a_row_of_a_product_does_not_depend_on_the_others(
    num_rows: int, dtype: torch.dtype
) -> None:
    x, weight = random(num_rows, 72), random(101, 72, seed=1, dtype=dtype)
    together = kernels.linear(x, weight)
    alone = torch.cat([kernels.linear(x[r : r + 1], weight) for r in range(num_rows)])
    assert torch.equal(together, alone)


@pytest.mark.parametrize("depth", [8, 24, 32, 40, 576])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_products_are_right_at_every_edge(depth: int, dtype: torch.dtype) -> None:
    for num_columns in (1, 2, 7, 48, 49, 50):
        x, weight = random(5, depth), random(num_columns, depth, seed=1, dtype=dtype)
        expected = x.double() @ weight.double().T
        torch.testing.assert_close(
            kernels.linear(x, weight).double(), expected, rtol=1e-5, atol=1e-4
        )


def test_threads_do_not_change_a_product() -> None:
    x, weight = random(5, 576), random(1024, 576, seed=1, dtype=torch.bfloat16)
    one = kernels.linear(x, weight)
    kernels.set_num_threads(2)
    try:
        two = kernels.linear(x, weight)
    finally:
        kernels.set_num_threads(1)
    assert torch.equal(one, two)


def test_attention_agrees_with_torch_and_ignores_other_rows() -> None:
    keys = [random(50, 2, 16, seed=1), random(50, 2, 16, seed=2)]
    values = [random(50, 2, 16, seed=3), random(50, 2, 16, seed=4)]
    query = random(4, 4, 16, seed=5)
    owner, length = torch.tensor([0, 0, 1, 1]), torch.tensor([17, 50, 1, 8])
    together = kernels.attend(query, keys, values, owner, length, 0.25)
    for row in range(4):
        one = slice(row, row + 1)
        alone = kernels.attend(query[one], keys, values, owner[one], length[one], 0.25)
        assert torch.equal(alone, together[one])
        n, cache = int(length[row]), int(owner[row])
        expected = torch.nn.functional.scaled_dot_product_attention(
            query[row][:, None],
            keys[cache][:n].transpose(0, 1).repeat_interleave(2, 0),
            values[cache][:n].transpose(0, 1).repeat_interleave(2, 0),
            scale=0.25,
        )
        torch.testing.assert_close(together[row].view(4, 1, 16), expected)


def attend_tree(num_threads: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Return every node's result in one pass over a tree, and of its path stored in one piece."""
    prefix, parents, stored = 11, [-1, -1, 0, 0, 2, 1], 20
    keys, values = random(40, 2, 16, seed=1), random(40, 2, 16, seed=2)
    query = random(6, 4, 16, seed=3)
    paths = []
    for node in range(6):
        path = [node]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        paths.append(path)
    branch = torch.tensor([[stored + n for n in path] + [-1] * (3 - len(path)) for path in paths])
    length = torch.tensor([prefix + len(path) for path in paths])
    alone = []
    for node, path in enumerate(paths):
        entries = [*range(prefix), *(stored + n for n in path)]
        one = slice(node, node + 1)
        alone.append(
            kernels.attend(
                query[one], [keys[entries]], [values[entries]], torch.tensor([0]), length[one], 0.25
            )
        )
    kernels.set_num_threads(num_threads)
    try:
        owner = torch.zeros(6, dtype=torch.int64)
        together = kernels.attend(query, [keys], [values], owner, length, 0.25, branch=branch)
    finally:
        kernels.set_num_threads(1)
    return together, torch.cat(alone)


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_node_of_a_tree_has_the_bits_of_its_path_alone(num_threads: int) -> None:
    together, alone = attend_tree(num_threads)
    assert torch.equal(together, alone)


def test_torch_operators_mask_a_tree_likewise(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, _ = attend_tree()
    monkeypatch.setenv("AURORA_KERNELS", "torch")
    kernels.compiled.cache_clear()
    try:
        together, alone = attend_tree()
    finally:
        monkeypatch.undo()
        kernels.compiled.cache_clear()
    torch.testing.assert_close(together, alone)
    torch.testing.assert_close(together, compiled)


def test_elementwise_kernels_agree_with_torch() -> None:
    x, weight, gate_up = random(3, 64) * 3, random(64, seed=1), random(3, 192, seed=2) * 20
    torch.testing.assert_close(
        kernels.rms_norm(x, weight, 1e-5),
        torch.nn.functional.rms_norm(x, (64,), weight, 1e-5),
    )
    torch.testing.assert_close(
        kernels.silu_multiply(gate_up),
        torch.nn.functional.silu(gate_up[:, :96]) * gate_up[:, 96:],
        rtol=1e-5,
        atol=1e-6,
    )


def test_argmax_takes_the_first_of_equals_and_logsumexp_is_exact() -> None:
    logits = random(3, 4096) * 8
    logits[1, 7] = logits[1, 4000] = 100.0
    best, total = kernels.argmax_logsumexp(logits)
    assert best.tolist() == [int(logits[0].argmax()), 7, int(logits[2].argmax())]
    torch.testing.assert_close(total, logits.logsumexp(-1))


def make_decoder(dtype: torch.dtype, *, extras: bool, num_layers: int = 2) -> Decoder:
    def layer(seed: int) -> LayerWeights:
        return LayerWeights(
            input_norm=1 + 0.1 * random(64, seed=seed),
            qkv=(0.2 * random(128, 64, seed=seed + 1)).to(dtype),
            qkv_bias=random(128, seed=seed + 2) if extras else None,
            query_norm=1 + 0.1 * random(16, seed=seed + 3) if extras else None,
            key_norm=1 + 0.1 * random(16, seed=seed + 4) if extras else None,
            output=(0.2 * random(64, 64, seed=seed + 5)).to(dtype),
            post_norm=1 + 0.1 * random(64, seed=seed + 6),
            gate_up=(0.2 * random(192, 64, seed=seed + 7)).to(dtype),
            down=(0.2 * random(64, 96, seed=seed + 8)).to(dtype),
        )

    angles = torch.arange(64)[:, None] * torch.tensor([0.5**i for i in range(8)])[None]
    return Decoder(
        [layer(10 * index) for index in range(num_layers)], SHAPE, angles.cos(), angles.sin()
    )


def run(decoder: Decoder, hidden: torch.Tensor, spans: list[tuple[int, int]]) -> torch.Tensor:
    """Run chains of rows, (first position, count) per request, over zeroed caches."""
    position = torch.cat([torch.arange(start, start + count) for start, count in spans])
    owner = torch.cat([torch.full((count,), index) for index, (_, count) in enumerate(spans)])
    caches = [[torch.zeros(40, 2, 16) for _ in spans] for _ in range(2 * len(decoder.layers))]
    plan = RowPlan(position=position, owner=owner, slot=position, length=position + 1)
    half = len(decoder.layers)
    output, captured = decoder.run(hidden.clone(), plan, caches[:half], caches[half:], (1, half))
    assert torch.equal(captured[:, 64:], output)
    return torch.cat((output, captured), dim=1)


@pytest.mark.parametrize("extras", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_compiled_stack_agrees_with_torch_operators(
    dtype: torch.dtype, extras: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, spans = random(9, 64, seed=99), [(0, 6), (0, 3)]
    compiled = run(make_decoder(dtype, extras=extras), hidden, spans)
    monkeypatch.setenv("AURORA_KERNELS", "torch")
    kernels.compiled.cache_clear()
    try:
        by_torch = run(make_decoder(dtype, extras=extras), hidden, spans)
    finally:
        monkeypatch.undo()
        kernels.compiled.cache_clear()
    torch.testing.assert_close(compiled, by_torch, rtol=1e-4, atol=1e-4)


def test_the_stack_gives_a_request_the_same_bits_alone_and_in_a_batch() -> None:
    decoder, hidden = make_decoder(torch.bfloat16, extras=True), random(9, 64, seed=98)
    together = run(decoder, hidden, [(0, 6), (0, 3)])
    assert torch.equal(run(decoder, hidden[:6], [(0, 6)]), together[:6])
    assert torch.equal(run(decoder, hidden[6:], [(0, 3)]), together[6:])


def test_threads_do_not_change_the_stack() -> None:
    decoder, hidden = make_decoder(torch.bfloat16, extras=False), random(9, 64, seed=97)
    one = run(decoder, hidden, [(0, 6), (0, 3)])
    kernels.set_num_threads(2)
    try:
        two = run(decoder, hidden, [(0, 6), (0, 3)])
    finally:
        kernels.set_num_threads(1)
    assert torch.equal(one, two)
