"""What a backend carries over a restart of its engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from aurora_core.engine_process.restarts import RequestNumbers, version_in_force
from aurora_core.records import NO_DRAFTER, DraftVersion, RequestStats
from aurora_core.testing.simulated_request import simulate_request
from aurora_core.versions import VersionStore


def finished(*sequences: int) -> list[RequestStats]:
    request = simulate_request({}, "hello", version=1, depth=3, rate=0.5)
    return [
        request.statistics(
            sequence=sequence,
            request_id=str(sequence),
            finished=0.0,
            num_prompt_tokens=5,
            ttft_s=0.1,
            decode_s=0.1,
        )
        for sequence in sequences
    ]


@dataclass
class Engine:
    """Answers with the requests above a number."""

    requests: list[RequestStats]
    asked: list[int] = field(default_factory=list)

    async def __call__(self, after: int) -> list[RequestStats]:
        self.asked.append(after)
        return [one for one in self.requests if one.sequence > after]


async def sequences(numbers: RequestNumbers, after: int, engine: Engine) -> list[int]:
    return [one.sequence for one in await numbers.finished(after, engine)]


async def test_numbers_go_on_rising_behind_what_was_seen_of_the_engine_before() -> None:
    numbers = RequestNumbers()
    assert await sequences(numbers, 0, Engine(finished(1, 2))) == [1, 2]
    numbers.engine_ended()
    engine = Engine(finished(1, 2, 3))
    assert await sequences(numbers, 2, engine) == [3, 4, 5]
    assert await sequences(numbers, 4, engine) == [5]
    assert await sequences(numbers, 0, engine) == [3, 4, 5], "the first two went with their engine"
    assert engine.asked == [0, 2, 0]


async def test_requests_before_attaching_are_left_out() -> None:
    numbers = RequestNumbers()
    numbers.leave_out(finished(1, 2, 3))
    engine = Engine(finished(1, 2, 3, 4))
    assert await sequences(numbers, 0, engine) == [1]
    assert engine.asked == [3]


async def test_an_answer_from_before_a_restart_is_not_numbered_as_one_from_after() -> None:
    numbers = RequestNumbers()
    await numbers.finished(0, Engine(finished(1)))

    async def dies_meanwhile(after: int) -> list[RequestStats]:
        numbers.engine_ended()
        return finished(2)

    assert await numbers.finished(1, dies_meanwhile) == []


def test_the_version_in_force_is_the_engines_word(tmp_path: Path) -> None:
    store = VersionStore(tmp_path)

    def write(folder: Path) -> None:
        for name in ("config.json", "model.safetensors"):
            (folder / name).write_text("{}")

    first, second = (
        store.stage(
            number,
            write,
            parent=None,
            speculator="toy",
            target_fingerprint="f" * 16,
            global_step=0,
            num_tokens_trained=0,
        )
        for number in (1, 2)
    )

    def in_force(known: DraftVersion | None, number: int) -> DraftVersion | None:
        return version_in_force(known, number, str(tmp_path))

    assert in_force(first, 1) is first
    assert in_force(first, 2) == second, "a swap succeeded unheard"
    assert in_force(first, NO_DRAFTER) is None
    assert in_force(None, NO_DRAFTER) is None
    assert in_force(first, 900) is None, "nobody published it"
