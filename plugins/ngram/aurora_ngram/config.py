"""Options of the n-gram speculator."""

from __future__ import annotations

from typing import Self

from pydantic import ByteSize, Field, model_validator

from aurora_core.interfaces import Options


class NgramOptions(Options):
    """What a configuration can say below `speculator:` when its name is `ngram`."""

    min_ngram: int = Field(2, ge=1, le=8)
    """Latest tokens of a request that must stand somewhere else too, before what follows them there
    is drafted."""
    max_ngram: int = Field(16, ge=1, le=64)
    """Latest tokens that are compared at most; the more are equal, the more a place counts."""
    max_matches: int = Field(64, ge=1, le=4096)
    """Earlier places that are looked at, the newest ones first, in the request's own text and again
    in that of others. Bounds the time of a draft."""
    min_confidence: float = Field(0.3, ge=0, lt=1)
    """A token is drafted only while the probability of the whole draft up to it, as the places
    counted suggest, is at least this; 0 always drafts as far as a text goes on."""
    num_branches: int = Field(1, ge=1, le=16)
    """Tokens drafted below one token at most: 1 drafts chains, more draft trees."""
    share_traffic: bool = True
    """Whether answers of finished requests are drafted from. False drafts from a request's own text
    alone, and nothing of one client's text can be noticed by another."""
    traffic_bytes: ByteSize = Field(ByteSize(64 << 20), ge=1 << 20)
    """Memory for the answers of finished requests; the oldest are forgotten first."""

    @model_validator(mode="after")
    def _lengths_fit(self) -> Self:
        if self.max_ngram < self.min_ngram:
            raise ValueError(
                f"`max_ngram` {self.max_ngram} is below `min_ngram` {self.min_ngram}; "
                "make it at least as large"
            )
        return self
