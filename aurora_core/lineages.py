"""Lineages: which drafters a request gets, when a run has several kinds of them at once.

    request that names a lineage --> that one
    tenant, route ---------------> the first lineage whose `match` fits
    hash of the prompt ----------> lineages with a `share`, among what no `match` fits
    everything else -------------> the default lineage

Equal requests always meet the same lineage, whenever they come and however busy the engine is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aurora_core.errors import ConfigError

if TYPE_CHECKING:
    from aurora_core.records import Needs

DEFAULT_LINEAGE = "default"
"""What people call the lineage that the top level of a configuration describes; its name in records
is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageRule:
    """Which requests a lineage serves. Without any condition, those alone that name it."""

    name: str
    tenants: tuple[str, ...] = ()
    """Tenants whose requests are its own."""
    routes: tuple[str, ...] = ()
    """Routes likewise; with both, a request must fit both."""
    share: float = 0.0
    """Share of the requests that no tenant or route decides, 0 to 1."""

    def matches(self, tenant: str, route: str) -> bool:
        """Return whether tenant and route make a request this lineage's own."""
        if not self.tenants and not self.routes:
            return False
        fits_tenant = not self.tenants or tenant in self.tenants
        return fits_tenant and (not self.routes or route in self.routes)


def choose_lineage(
    rules: Sequence[LineageRule], *, tenant: str, route: str, request_key: str
) -> str:
    """Return the name of the lineage that serves a request, empty for the default one.

    Args:
        rules: of all lineages but the default one, in the order of the configuration.
        tenant: who sent the request; may be empty.
        route: what it is for; may be empty.
        request_key: hash of the prompt, from which the shares are drawn.
    """
    for rule in rules:
        if rule.matches(tenant, route):
            return rule.name
    # Its own prefix: the held-out side of the traces is drawn from the same key, and a share that
    # went along with it would be all held out or not at all.
    digest = hashlib.sha256(b"lineage:" + request_key.encode()).digest()
    place = int.from_bytes(digest[:8], "big") / 2**64
    for rule in rules:
        place -= rule.share
        if place < 0:
            return rule.name
    return ""


def shown_name(lineage: str) -> str:
    """Return what people call a lineage."""
    return lineage or DEFAULT_LINEAGE


def internal_name(shown: str, known: Collection[str]) -> str | None:
    """Return the name in records of a lineage that a person named, None if there is none such.

    Args:
        shown: as the person wrote it.
        known: names of all lineages but the default one.
    """
    if shown in ("", DEFAULT_LINEAGE):
        return ""
    return shown if shown in known else None


def union_of_needs(needs: Iterable[tuple[str, Needs]]) -> Needs:
    """Return what an engine must capture to satisfy several lineages at once.

    Args:
        needs: (name of the lineage, what it needs), the default one included.

    Raises:
        ConfigError: two of them need the hidden states of different layers: an engine captures one
            set of layers.
    """
    from aurora_core.records import Needs

    features: frozenset[str] = frozenset()
    branch_rows = False
    first: tuple[str, tuple[int, ...]] = ("", ())
    for name, needed in needs:
        features |= needed.features
        branch_rows |= needed.branch_rows
        if not needed.aux_layers:
            continue
        if first[1] and first[1] != needed.aux_layers:
            raise ConfigError(
                f"lineages {shown_name(first[0])!r} and {shown_name(name)!r} need hidden states "
                f"of different layers ({_words(first[1])} and {_words(needed.aux_layers)}), and "
                "the engine captures one set of them; give both speculators the same layers"
            )
        first = (name, needed.aux_layers)
    return Needs(features=features, aux_layers=first[1], branch_rows=branch_rows)


def _words(layers: Iterable[int]) -> str:
    return ", ".join(map(str, layers))
