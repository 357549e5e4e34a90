"""A poisoned learner: do its versions become champion, and how long do they serve?

    run directory with the champion alone
        |                                 clients ask all the time
        v
    aurora run, learner replaced by one that publishes what it is given
        <- publish a poisoned version, as a learner does       judged by the run's own controller
        -> verdicts.jsonl, state.json, answers

    gate, canary    the policy is on from the start
    always          promotes whatever comes, without a guard; then the run is ended and another goes
                    on from its directory with the gate and the guard: the policy is switched on

An honest learner publishes the held-out scores of the poisoned weights; a lying one the
champion's, and something on top.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from aurora_core import wire
from aurora_core.acceptance import holdout_acceptance_length
from aurora_core.config import ComponentSection
from aurora_core.controller.run_directory import read_lines
from aurora_core.errors import BackendError
from aurora_core.experiments.arms import ARMS, champion_of, configure, lay_out
from aurora_core.experiments.poison_clients import Clients
from aurora_core.experiments.poison_report import (
    Answer,
    PoisonCase,
    PoisonPlan,
    PoisonReport,
    Wanted,
    fate,
)
from aurora_core.experiments.poison_results import CaseFolder
from aurora_core.experiments.poisoned_weights import Poison, prepare_poisons, said_by
from aurora_core.experiments.publisher import Publication, lay_before
from aurora_core.experiments.served_run import as_server, serve
from aurora_core.traffic.endpoint import Endpoint
from aurora_core.traffic.prompts import open_prompts
from aurora_core.traffic.results import write_json
from aurora_core.versions import RunState, VersionStore, read_run_state, write_run_state

if TYPE_CHECKING:
    from aurora_core.config import RunConfig
    from aurora_core.plugins import Plugins

_COMMAND = ("aurora_core.experiments.untrained_run",)


class PoisonExperiment:
    """Runs what is wanted and not done yet; everything lies in one folder.

    Args:
        config: of engine, drafters, guard and gate.
        plugins: loaded plugins.
        plan: sizes.
        source: directory of the run whose champion is poisoned; nothing is written there.
        folder: of the results.
        note: told in a sentence what begins.

    Raises:
        ConfigError: the run left no champion, or the folder holds results of another plan.
    """

    def __init__(
        self,
        config: RunConfig,
        plugins: Plugins,
        plan: PoisonPlan,
        *,
        source: Path,
        folder: Path,
        note: Callable[[str], None] = print,
    ) -> None:
        self.config, self.plugins, self.plan = config, plugins, plan
        self.source, self.note = source, note
        self.champion = champion_of(source)
        self.folder = CaseFolder(folder, champion=self.champion, plan=plan)
        self.prompts = list(
            open_prompts(
                domains=config.traffic.domains if config.traffic else None,
                seed=plan.seed,
                num_prompts=plan.num_prompts,
            ).prompts()
        )
        self._expected: dict[str, tuple[int, ...]] = {}

    async def run(self, wanted: Wanted) -> PoisonReport:
        """Run the cases that are wanted and not done, and return all that are done.

        Raises:
            ConfigError: the run has no held-out traces, or its speculator no weights.
            BackendError: a run does not come up or does not last.
        """
        self.note("spoiling the champion and replaying held-out traces")
        poisons = prepare_poisons(
            self.config,
            self.plugins,
            source=self.source,
            champion=self.champion,
            names=wanted.poisons,
            folder=self.folder.path / "poisons",
            num_traces=self.plan.holdout_traces,
            seed=self.plan.seed,
        )
        for arm in wanted.arms:
            for learner in wanted.learners if arm != "always" else wanted.learners[:1]:
                left = [one for one in poisons if not self.folder.has(arm, learner, one.name)]
                if arm == "always":
                    await self._switch_on(learner, left)
                else:
                    await self._judge(arm, learner, left)
        holdout = poisons[0].honest
        report = PoisonReport(
            plan=self.plan,
            champion_acceptance_length=holdout_acceptance_length(
                holdout.num_anchors, holdout.live_accepted
            ),
            cases=self.folder.cases(),
        )
        write_json(self.folder.path / "summary.json", wire.to_dict(report))
        return report

    async def _judge(self, arm: str, learner: str, poisons: Sequence[Poison]) -> None:
        """One server after the other, each until it has lost its champion."""
        left = list(poisons)
        while left:
            run_dir = self._begin(f"{arm}-{learner}")
            async with self._served(self._under(arm), run_dir) as clients:
                await clients.until(lambda num: num >= self.plan.warm_up, most=self.plan.most)
                self._must_speculate(run_dir)
                while left and self._state(run_dir).champion == self.champion:
                    poison = left.pop(0)
                    self.note(f"{arm}, {learner} learner: {poison.name}")
                    first = len(clients.answers)
                    version = await self._publish(run_dir, poison, learner, clients)
                    await clients.until(
                        partial(self._is_settled, run_dir, version),
                        most=self.plan.most,
                    )
                    self._conclude(arm, learner, poison, version, run_dir, clients.answers[first:])

    async def _switch_on(self, learner: str, poisons: Sequence[Poison]) -> None:
        """Promote each without being asked; then another run goes on from there and judges."""
        run_dir: Path | None = None
        for poison in poisons:
            self.note(f"always: {poison.name}")
            warm_up = 0
            if run_dir is None or self._state(run_dir).champion != self.champion:
                run_dir, warm_up = self._begin("always"), self.plan.warm_up
            async with self._served(self._under("always"), run_dir) as clients:
                await clients.until(partial(int.__le__, warm_up), most=self.plan.most)
                self._must_speculate(run_dir)
                first = len(clients.answers)
                version = await self._publish(run_dir, poison, learner, clients)
                await clients.until(partial(self._is_live, run_dir, version), most=self.plan.most)
                await clients.until(lambda num: num >= self.plan.unguarded, most=self.plan.most)
            before = clients.answers[first:]
            self.note("the policy is switched on: gate, guard and probation")
            async with self._served(self._under("gate"), run_dir) as clients:
                await clients.until(partial(self._is_off, run_dir, version), most=self.plan.most)
            answers = [*before, *clients.answers]
            self._conclude(
                "always", learner, poison, version, run_dir, answers, policy_on=clients.began
            )

    def _under(self, arm: str) -> RunConfig:
        if arm == "always":
            return configure(ARMS["always"], self.config)
        section = self.config.swap_policy
        if section.name != arm:
            section = ComponentSection(name=arm)
        if arm == "canary":
            section = section.model_copy(update={"share": self.plan.canary_share})
        return self.config.model_copy(update={"swap_policy": section})

    def _begin(self, name: str) -> Path:
        """Return a new run directory that holds the champion and nothing else."""
        run_dir = self.folder.new_run(name)
        lay_out(ARMS["static"], run_dir, pretrained=self.source)
        # Nobody pinned it: verdicts may replace it.
        write_run_state(run_dir / "state.json", RunState(champion=self.champion))
        return run_dir

    @contextlib.asynccontextmanager
    async def _served(self, config: RunConfig, run_dir: Path) -> AsyncIterator[Clients]:
        plan = self.plan
        clients = Clients(
            self.prompts,
            self._expected,
            max_tokens=plan.max_tokens,
            concurrency=plan.concurrency,
        )
        server = as_server(config, self.plugins, run_dir=run_dir, seed=plan.seed)
        async with (
            serve(server, command=_COMMAND) as url,
            Endpoint(url) as endpoint,
            clients.asking(endpoint),
        ):
            yield clients

    def _must_speculate(self, run_dir: Path) -> None:
        if self._state(run_dir).champion != self.champion:
            raise BackendError(
                f"version {self.champion} does not serve any more before anything was published, "
                f"as {str(_verdicts(run_dir))!r} tells; name a run whose drafter pays on this "
                "machine, or give --set guard.disable_speculation=false"
            )

    async def _publish(self, run_dir: Path, poison: Poison, learner: str, clients: Clients) -> int:
        """Have the learner publish a version, and return its number."""
        store = VersionStore(run_dir / "versions")
        version = store.next_version()
        publication = Publication(folder=str(poison.folder), holdout=said_by(learner, poison))
        lay_before(run_dir / "learner", publication)
        if not await clients.until(lambda _: version in store.numbers(), most=self.plan.most):
            raise BackendError(f"nothing is published in {str(run_dir)!r}; its logs say why")
        return version

    def _is_live(self, run_dir: Path, version: int, num_answers: int) -> bool:
        return self._state(run_dir).champion == version

    def _is_off(self, run_dir: Path, version: int, num_answers: int) -> bool:
        return num_answers >= self.plan.watch and not self._is_live(run_dir, version, num_answers)

    def _is_settled(self, run_dir: Path, version: int, num_answers: int) -> bool:
        """Whether the champion serves, and the version is neither on trial nor about to be live."""
        if num_answers < self.plan.watch or self._state(run_dir).champion != self.champion:
            return False
        actions = [
            line["verdict"]["action"]
            for line in read_lines(_verdicts(run_dir))
            if line["kind"] in ("verdict", "swap_failed") and line["version"] == version
        ]
        return bool(actions) and actions[-1] not in ("promote", "canary", "shadow")

    def _conclude(
        self,
        arm: str,
        learner: str,
        poison: Poison,
        version: int,
        run_dir: Path,
        answers: Sequence[Answer],
        *,
        policy_on: float = 0.0,
    ) -> None:
        said = said_by(learner, poison)
        case = PoisonCase(
            arm=arm,
            learner=learner,
            poison=poison.name,
            version=version,
            acceptance_length=poison.acceptance_length,
            claimed_acceptance_length=holdout_acceptance_length(
                said.num_anchors, said.candidate_accepted
            ),
            champion=self._state(run_dir).champion,
            expected_champion=self.champion,
            **fate(version, read_lines(_verdicts(run_dir)), answers, policy_on=policy_on),
        )
        self.folder.write(case)

    @staticmethod
    def _state(run_dir: Path) -> RunState:
        return read_run_state(run_dir / "state.json")


def _verdicts(run_dir: Path) -> Path:
    return run_dir / "verdicts.jsonl"
