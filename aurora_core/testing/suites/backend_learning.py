"""From served requests to a better drafter and back: what the engine records can be learned."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from aurora_core.errors import BackendError
from aurora_core.interfaces import Speculator
from aurora_core.records import NO_DRAFTER, DraftVersion
from aurora_core.target.weights import TargetWeights
from aurora_core.testing.reference_engine import ReferenceEngine
from aurora_core.testing.suites.backend_fixtures import (
    NUM_RECORDED_TOKENS,
    PROMPTS,
    WAIT_S,
    BackendFixtures,
    record,
    stage,
    traces_of,
    wait_for_traces,
)
from aurora_core.testing.suites.material import reference_target
from aurora_core.testing.suites.served_backend import ServedBackend
from aurora_core.trace_validation import first_problem


class RecordingPromises(BackendFixtures):
    """Engines that write traces: what they hold, and what becomes of it."""

    @pytest.fixture
    def recording(self, served: ServedBackend, records_traces: bool) -> ServedBackend:
        """The running engine; tests that ask for it are skipped if it writes no traces."""
        if not records_traces:
            pytest.skip("the engine writes no traces")
        return served

    def test_traces_are_sound_and_hold_what_was_asked_for(
        self, recording: ServedBackend, draft: DraftVersion, speculator: Speculator
    ) -> None:
        recording.swap(draft)
        traces = record(recording)
        for trace in traces:
            assert first_problem(trace) is None
            assert trace.target_fingerprint == speculator.target.fingerprint
            assert speculator.needs.features <= trace.features.keys()
            assert trace.aux_layers == speculator.needs.aux_layers
            committed = trace.rows.position[trace.rows.position >= 0].tolist()
            every = list(range(len(trace.token_ids)))
            # The target reads the last token only where it was a draft.
            assert sorted(committed) in (every[:-1], every)
            assert set(trace.steps.version.tolist()) <= {draft.version, NO_DRAFTER}
            assert draft.version in trace.steps.version.tolist()
            speculator.collate([trace])

    def test_a_trace_says_what_was_answered(self, recording: ServedBackend) -> None:
        known = {trace.trace_id for trace in traces_of(recording)}
        answers = recording.ask(PROMPTS, max_tokens=NUM_RECORDED_TOKENS)
        if not all(answer.prompt_token_ids for answer in answers):
            pytest.skip("the engine does not return token ids")
        traces = wait_for_traces(recording, known, len(PROMPTS))
        found = sorted(tuple(trace.token_ids.tolist()) for trace in traces)
        assert found == sorted((*a.prompt_token_ids, *a.output) for a in answers)
        prompts = sorted(len(answer.prompt_token_ids) for answer in answers)
        assert sorted(trace.prompt_len for trace in traces) == prompts

    def test_recorded_features_are_the_targets(
        self, recording: ServedBackend, draft: DraftVersion, speculator: Speculator
    ) -> None:
        """Each row against the library's computation, and closer to it than its neighbours are.

        With and without drafts, in one batch: rows of the wrong position, layer or request fail.
        """
        recording.swap(draft)
        engine = ReferenceEngine(reference_target(speculator.target), speculator.needs)
        for trace in record(recording):
            positions, order = trace.rows.position[trace.rows.position >= 0].sort()
            rows = engine.reference.rows(trace.token_ids.tolist())
            expected = {
                name: feature[positions]
                for name, feature in rows.features(trace.aux_layers).items()
            }
            for name in sorted(
                speculator.needs.features & {"aux_hidden_states", "last_hidden_state"}
            ):
                mine = trace.features[name][trace.rows.position >= 0][order].float()
                similar = torch.cosine_similarity(mine, expected[name], dim=-1)
                shifted = torch.cosine_similarity(mine[1:], expected[name][:-1], dim=-1)
                assert float(similar.min()) > 0.98, name
                assert float(similar.mean()) > float(shifted.mean()), name

    def test_answers_learned_by_heart_are_accepted_whole(
        self,
        recording: ServedBackend,
        draft: DraftVersion,
        learned: DraftVersion,
        num_speculative_tokens: int,
    ) -> None:
        """Serve, record, train, publish, swap, serve again: hardly a draft is refused.

        The untrained drafter's acceptance is lower: what is live is what was published.
        """
        recording.swap(draft)
        untrained = recording.acceptance_length(PROMPTS, max_tokens=NUM_RECORDED_TOKENS)
        recording.swap(learned)
        trained = recording.acceptance_length(PROMPTS, max_tokens=NUM_RECORDED_TOKENS)
        assert trained > untrained
        # The last step is cut short, and other rounding than the trainer's may cost a draft.
        num_steps = -(-(NUM_RECORDED_TOKENS - 1) // (num_speculative_tokens + 1))
        full = (NUM_RECORDED_TOKENS - 1) / num_steps
        assert trained > 0.85 * full

    @pytest.mark.parametrize("damage", ["missing", "not_finite", "beyond_the_vocabulary"])
    def test_a_checkpoint_that_does_not_fit_is_refused(
        self,
        recording: ServedBackend,
        speculator: Speculator,
        speculator_name: str,
        weights: TargetWeights,
        draft: DraftVersion,
        damage: str,
        tmp_path: Path,
    ) -> None:
        """Published with the right checksum, and yet unusable: engines do not notice by it.

        A tensor is missing, holds values that are not finite, or maps to tokens that do not exist.
        """
        recording.swap(draft)
        speculator.save(speculator.build_module(weights, ()), tmp_path)
        if not _damage(tmp_path / "model.safetensors", damage):
            pytest.skip("the speculator's checkpoints have no vocabulary map")

        def write(path: Path) -> None:
            shutil.copytree(tmp_path, path, dirs_exist_ok=True)

        bad = stage(Path(recording.plan.versions_dir), speculator, speculator_name, write)
        with pytest.raises(BackendError):
            recording.swap(bad)
        assert recording.status().live_version == draft.version
        recording.ask(PROMPTS[:1])

    def test_a_disk_that_fails_costs_traces_and_nothing_else(
        self, recording: ServedBackend, draft: DraftVersion
    ) -> None:
        """Answers, swaps and the traces of before are as they were; new ones follow later."""
        recording.swap(draft)
        expected = recording.ask(PROMPTS)
        record(recording)
        before, shed = traces_of(recording), recording.status().traces_shed
        with _failing_disk(Path(str(recording.plan.sink_options["path"]))):
            assert recording.ask(PROMPTS) == expected
            recording.swap(None)
            assert recording.swap(draft).checksum == draft.checksum
            _wait_until(lambda: recording.status().traces_shed >= shed + len(PROMPTS))
        assert {trace.trace_id for trace in traces_of(recording)} == {
            trace.trace_id for trace in before
        }
        assert len(record(recording)) == len(PROMPTS)


def _damage(path: Path, damage: str) -> bool:
    """Change one tensor of a checkpoint; False if it has none that can be changed so."""
    tensors = load_file(path)
    # Whole numbers in a checkpoint are ids or offsets of ids.
    ids = damage == "beyond_the_vocabulary"
    names = [
        name
        for name, tensor in sorted(tensors.items())
        if (tensor.dtype == torch.int64 if ids else tensor.is_floating_point())
    ]
    if not names:
        return False
    if damage == "missing":
        tensors.pop(names[-1])
    else:
        tensors[names[-1]].view(-1)[-1] = 2**40 if ids else float("nan")
    save_file(tensors, path)
    return True


@contextlib.contextmanager
def _failing_disk(spool: Path) -> Iterator[None]:
    """Let every write of a trace fail, as on a full disk.

    A file stands where the spool's unfinished traces are written. Filling a disk would fill the
    machine's own; the writer's tests have an error of a full disk in the middle of a file.
    """
    partial, aside = spool / "partial", spool / "aside"
    partial.rename(aside)
    partial.touch()
    try:
        yield
    finally:
        partial.unlink()
        aside.rename(partial)


def _wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, f"it did not come true within {WAIT_S:.0f} s"
        time.sleep(0.05)
