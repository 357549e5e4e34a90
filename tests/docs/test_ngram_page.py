"""What the page on n-gram drafts states as a figure is what the plugin does."""

from __future__ import annotations

import math
import re

import pytest
import torch
import yaml

from aurora_core.interfaces import DraftRequest
from aurora_ngram.config import NgramOptions
from aurora_ngram.drafter import NgramDrafter
from aurora_ngram.text_index import BYTES_PER_TOKEN


@pytest.fixture
def page(pages) -> str:
    return " ".join(pages["docs/plugins/ngram.md"].text.split())


def confidence(num_equal: int) -> float:
    """Return the probability of what followed the one place where so many tokens stood before."""
    options = NgramOptions(min_confidence=0.0)
    shared = list(range(num_equal))
    request = DraftRequest(
        request_id="page",
        start=0,
        token_ids=torch.tensor([90, *shared, 80, 91, *shared]),
        features={},
        num_speculative_tokens=1,
        max_nodes=1,
    )
    [proposal] = NgramDrafter(options, vocab_size=100).propose([request])
    assert proposal.token_ids == [80]
    return math.exp(proposal.log_probs[0])


def test_the_configuration_it_shows_is_valid(pages):
    [block] = pages["docs/plugins/ngram.md"].blocks("yaml")
    section = yaml.safe_load(block)["speculator"]
    assert section.pop("name") == "ngram"
    NgramOptions.model_validate(section)


def test_options_it_names_exist(pages):
    named = set(re.findall(r"`([a-z_]+)(?:: \w+)?`", pages["docs/plugins/ngram.md"].prose))
    assert named - {"ngram", "final_bench"} <= set(NgramOptions.model_fields)
    assert len(named) > 5


def test_its_probabilities_are_those_of_the_drafter(page):
    least = NgramOptions().min_ngram
    assert "the shortest match gives one half" in page
    assert confidence(least) == pytest.approx(1 / 2)
    assert "four tokens more gives 16/17" in page
    assert confidence(least + 4) == pytest.approx(16 / 17)


def test_memory_is_counted_as_it_says(page):
    assert f"counted as {BYTES_PER_TOKEN} bytes a token" in page
