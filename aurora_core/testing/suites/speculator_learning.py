"""What a trainable speculator promises the learner: losses that add up, and lineages that go on."""

from __future__ import annotations

import copy
import dataclasses
import math

import pytest
import torch
from torch import Tensor, nn

from aurora_core.errors import TraceError
from aurora_core.interfaces import LossOutput, Speculator
from aurora_core.records import TargetSpec, Trace
from aurora_core.target.weights import TargetWeights
from aurora_core.testing.suites.material import plain_trace
from aurora_core.testing.suites.speculator_fixtures import SpeculatorFixtures, build, train


class LearningPromises(SpeculatorFixtures):
    """`build_module`, `collate` and `loss` of speculators that learn by gradients."""

    @pytest.fixture
    def trainable(self, speculator: Speculator) -> Speculator:
        """The speculator; tests that ask for it are skipped if it does not learn by gradients."""
        if not speculator.trainable:
            pytest.skip("the speculator is not trainable")
        return speculator

    def test_a_new_module_is_float32_on_the_cpu_and_can_learn(
        self, trainable: Speculator, fresh_module: nn.Module
    ) -> None:
        parameters = list(fresh_module.parameters())
        assert {p.dtype for p in parameters} == {torch.float32}
        assert {p.device.type for p in parameters} == {"cpu"}
        assert any(p.requires_grad for p in parameters)

    def test_no_two_weights_share_their_storage(
        self, trainable: Speculator, fresh_module: nn.Module
    ) -> None:
        """`[block] * n` and a slice of another weight train one set of numbers under two names."""
        owner: dict[int, str] = {}
        for name, parameter in fresh_module.named_parameters(remove_duplicate=False):
            place = parameter.untyped_storage().data_ptr()
            assert place not in owner, f"{name!r} shares its storage with {owner[place]!r}"
            owner[place] = name

    def test_loss_is_a_finite_sum_with_gradients(
        self, trainable: Speculator, module: nn.Module, traces: list[Trace]
    ) -> None:
        output, gradients = _loss_and_gradients(trainable, module, traces)
        for value in (output.loss_sum, output.weight_sum, *output.metrics.values()):
            assert value.dtype == torch.float32
            assert value.shape == ()
            assert math.isfinite(value.detach())
        assert output.weight_sum > 0
        assert not output.weight_sum.requires_grad
        assert all(torch.isfinite(gradient).all() for gradient in gradients.values())
        assert any(gradient.any() for gradient in gradients.values())

    def test_loss_leaves_batch_and_traces_as_they_are(
        self, trainable: Speculator, module: nn.Module, traces: list[Trace]
    ) -> None:
        untouched = copy.deepcopy(traces)
        batch = trainable.collate(traces)
        before = {name: tensor.clone() for name, tensor in batch.items()}
        _backward(trainable.loss(module, batch))
        trainable.acceptance(module, batch, 2)
        assert batch.keys() == before.keys()
        for name, tensor in before.items():
            assert torch.equal(batch[name].nan_to_num(), tensor.nan_to_num()), name
        for trace, original in zip(traces, untouched, strict=True):
            assert torch.equal(trace.token_ids, original.token_ids)
            for name, feature in original.features.items():
                assert torch.equal(trace.features[name].nan_to_num(), feature.nan_to_num()), name

    def test_a_batch_is_the_sum_of_its_traces(
        self, trainable: Speculator, module: nn.Module, traces: list[Trace]
    ) -> None:
        """Short traces count the same whatever they are padded to: sums, weights, gradients."""
        together, gradients = _loss_and_gradients(trainable, module, traces)
        alone = [_loss_and_gradients(trainable, module, [trace]) for trace in traces]
        outputs = [output for output, _ in alone]
        _require_close(together.loss_sum, sum(output.loss_sum for output in outputs), "loss_sum")
        _require_close(together.weight_sum, sum(o.weight_sum for o in outputs), "weight_sum")
        assert together.num_tokens == sum(output.num_tokens for output in outputs)
        for name, gradient in gradients.items():
            _require_close(gradient, sum(theirs[name] for _, theirs in alone), name)

    def test_the_order_of_traces_does_not_matter(
        self, trainable: Speculator, module: nn.Module, traces: list[Trace]
    ) -> None:
        forwards, gradients = _loss_and_gradients(trainable, module, traces)
        backwards, others = _loss_and_gradients(trainable, module, traces[::-1])
        _require_close(backwards.loss_sum, forwards.loss_sum, "loss_sum")
        for name, gradient in gradients.items():
            _require_close(others[name], gradient, name)

    def test_a_missing_feature_is_refused(self, trainable: Speculator, traces: list[Trace]) -> None:
        for missing in sorted(trainable.needs.features):
            features = {n: rows for n, rows in traces[0].features.items() if n != missing}
            with pytest.raises(TraceError):
                trainable.collate([dataclasses.replace(traces[0], features=features)])

    def test_hidden_states_of_other_layers_are_refused(
        self, trainable: Speculator, traces: list[Trace]
    ) -> None:
        if not trainable.needs.aux_layers:
            pytest.skip("the speculator reads no `aux_hidden_states`")
        others = tuple(layer - 1 for layer in traces[0].aux_layers)
        with pytest.raises(TraceError):
            trainable.collate([dataclasses.replace(traces[0], aux_layers=others)])

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_values_that_are_not_finite_are_refused(
        self, trainable: Speculator, traces: list[Trace], value: float
    ) -> None:
        """In a row of the response; `target_logsumexp` is NaN in prompts and must pass there."""
        trainable.collate(traces)
        for name in sorted(trainable.needs.features):
            damaged = copy.deepcopy(traces[0])
            damaged.features[name][damaged.prompt_len + 3] = value
            with pytest.raises(TraceError):
                trainable.collate([traces[1], damaged])

    def test_a_batch_that_supervises_nothing_is_zero(
        self, trainable: Speculator, module: nn.Module, target: TargetSpec
    ) -> None:
        """A prompt without an answer: sums are 0, gradients too, and nothing becomes NaN."""
        empty = plain_trace(target, trainable.needs, num_response=1)
        empty = dataclasses.replace(empty, prompt_len=len(empty.token_ids))
        output, gradients = _loss_and_gradients(trainable, module, [empty])
        sums = (float(output.loss_sum.detach()), float(output.weight_sum), output.num_tokens)
        assert sums == (0, 0, 0)
        assert not any(gradient.any() for gradient in gradients.values())
        assert all(math.isfinite(value) for value in output.metrics.values())
        accepted, anchors = trainable.acceptance(module, trainable.collate([empty]), 2)
        assert accepted.tolist() == [[0, 0]]
        assert anchors.tolist() == [0]

    def test_training_lowers_the_loss_and_leaves_the_target_alone(
        self,
        trainable: Speculator,
        weights: TargetWeights,
        traces: list[Trace],
        target: TargetSpec,
    ) -> None:
        module = build(trainable, weights, traces)
        losses = train(trainable, module, trainable.collate(traces), 20, 3e-3)
        assert losses[-1] < losses[0]
        untouched = TargetWeights(target)
        assert torch.equal(weights.embed_tokens, untouched.embed_tokens)
        assert torch.equal(weights.lm_head, untouched.lm_head)
        assert torch.equal(weights.final_norm, untouched.final_norm)

    def test_training_is_reproducible(
        self, trainable: Speculator, weights: TargetWeights, traces: list[Trace]
    ) -> None:
        batch = trainable.collate(traces)
        runs = []
        for _ in range(2):
            module = build(trainable, weights, traces, seed=5)
            torch.manual_seed(6)
            runs.append((train(trainable, module, batch, 4, 3e-3), module.state_dict()))
        assert runs[0][0] == runs[1][0]
        for name, tensor in runs[0][1].items():
            assert torch.equal(tensor, runs[1][1][name]), name

    def test_a_lineage_goes_on_from_its_state_dict_on_other_traffic(
        self,
        trainable: Speculator,
        weights: TargetWeights,
        module: nn.Module,
        traces: list[Trace],
        target: TargetSpec,
    ) -> None:
        """What was chosen from the first traces, as a draft vocabulary, travels in the module."""
        other = plain_trace(target, trainable.needs, seed=77, num_response=12)
        resumed = build(trainable, weights, [other], seed=9)
        resumed.load_state_dict(module.state_dict())
        batch = trainable.collate(traces)
        losses = [train(trainable, each, batch, 3, 3e-3) for each in (module, resumed)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
        replays = [trainable.acceptance(each, batch, 2) for each in (module, resumed)]
        assert replays[0][0].tolist() == replays[1][0].tolist()
        assert replays[0][1].tolist() == replays[1][1].tolist()

    def test_bfloat16_autocast_gives_about_the_same_loss(
        self, trainable: Speculator, module: nn.Module, traces: list[Trace]
    ) -> None:
        batch = trainable.collate(traces)
        exact = trainable.loss(module, batch)
        with torch.autocast("cpu", torch.bfloat16):
            rough = trainable.loss(module, batch)
        _backward(rough)
        assert rough.loss_sum.dtype == torch.float32
        assert float(rough.loss_sum) == pytest.approx(float(exact.loss_sum), rel=0.1)
        dtypes = {p.grad.dtype for p in module.parameters() if p.grad is not None}
        assert dtypes == {torch.float32}


def _backward(output: LossOutput) -> None:
    output.loss_sum.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped


def _loss_and_gradients(
    speculator: Speculator, module: nn.Module, traces: list[Trace]
) -> tuple[LossOutput, dict[str, Tensor]]:
    module.zero_grad()
    output = speculator.loss(module, speculator.collate(traces))
    _backward(output)
    gradients = {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for name, p in module.named_parameters()
        if p.requires_grad
    }
    return output, gradients


def _require_close(mine: Tensor, expected: Tensor | int, what: str) -> None:
    expected = torch.as_tensor(expected, dtype=mine.dtype)
    scale = float(expected.detach().abs().max().clamp(min=1e-3))
    difference = float((mine - expected).detach().abs().max())
    assert difference <= 1e-3 * scale, f"{what} differs by {difference:.3g} at scale {scale:.3g}"
