"""Whether a speculator and a backend can work together, decided before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aurora_core.errors import ConfigError

if TYPE_CHECKING:
    from aurora_core.interfaces import Backend, Speculator


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One line of the table."""

    need: str
    provided: str
    met: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What a speculator and a backend use together."""

    topology: str
    """Shape of proposals: `tree` where both sides can, else `chain`."""
    format: str
    """Checkpoint format: `module` where both sides can, else the first common one by name."""
    requirements: tuple[Requirement, ...]

    def table(self) -> str:
        """Return the requirements as aligned plain text."""
        return render(self.requirements)


def negotiate(
    speculator: Speculator, backend: Backend, *, speculator_name: str, backend_name: str
) -> Agreement:
    """Resolve what the speculator needs against what the backend provides.

    Raises:
        ConfigError: something is missing; the message is one sentence and the whole table.
    """
    requirements = requirements_of(speculator, backend)
    missing = [requirement for requirement in requirements if not requirement.met]
    if missing:
        raise ConfigError(
            f"speculator {speculator_name!r} cannot work with backend {backend_name!r}: "
            f"{len(missing)} of {len(requirements)} requirements missing\n{render(requirements)}"
        )
    provides = backend.provides
    topologies = speculator.topologies & provides.topologies
    formats = speculator.formats & provides.formats
    return Agreement(
        topology="tree" if "tree" in topologies else min(topologies),
        format="module" if "module" in formats else min(formats),
        requirements=tuple(requirements),
    )


def requirements_of(speculator: Speculator, backend: Backend) -> list[Requirement]:
    """Return every requirement of a speculator beside what the backend has, met or not."""
    needs, provides = speculator.needs, backend.provides
    num_layers = speculator.target.num_layers
    requirements = [
        Requirement(
            need=f"feature {feature}",
            provided="yes" if feature in provides.features else _words(provides.features),
            met=feature in provides.features,
        )
        for feature in sorted(needs.features)
    ]
    if needs.aux_layers:
        requirements.append(
            Requirement(
                need=f"target layers {', '.join(map(str, needs.aux_layers))}",
                provided=f"0 to {num_layers}",
                met=all(0 <= layer <= num_layers for layer in needs.aux_layers),
            )
        )
    if needs.branch_rows:
        requirements.append(
            Requirement(
                need="rows of rejected draft tokens",
                provided="yes" if provides.branch_rows else "no",
                met=provides.branch_rows,
            )
        )
    for subject, wanted, offered in (
        ("topology", speculator.topologies, provides.topologies),
        ("checkpoint format", speculator.formats, provides.formats),
    ):
        requirements.append(
            Requirement(
                need=f"{subject} {_words(wanted, 'or')}",
                provided=_words(offered),
                met=bool(wanted & offered),
            )
        )
    if speculator.trainable:
        requirements.append(
            Requirement(
                need="swapping drafters while serving",
                provided=provides.hot_swap,
                met=provides.hot_swap != "none",
            )
        )
    return requirements


def render(requirements: Sequence[Requirement]) -> str:
    """Return the requirements as an aligned plain text table, for messages and terminals."""
    rows = [("needed", "backend provides", "")]
    rows += [(r.need, r.provided, "ok" if r.met else "missing") for r in requirements]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return "\n".join(
        f"  {need:<{widths[0]}}  {provided:<{widths[1]}}  {verdict}".rstrip()
        for need, provided, verdict in rows
    )


def _words(names: Iterable[str], conjunction: str = "") -> str:
    separator = f" {conjunction} " if conjunction else ", "
    return separator.join(sorted(names)) or "none"
