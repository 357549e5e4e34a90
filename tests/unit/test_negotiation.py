"""Needs against provides: one table, before anything is loaded."""

from __future__ import annotations

import pytest

from aurora_core.errors import ConfigError
from aurora_core.interfaces import Backend, Options, Speculator
from aurora_core.negotiation import negotiate
from aurora_core.records import Needs, Provides, TargetSpec

TARGET = TargetSpec(
    name="tiny",
    path="/nowhere",
    architecture="LlamaForCausalLM",
    fingerprint="f",
    tokenizer_fingerprint="t",
    vocab_size=64,
    hidden_size=8,
    num_layers=4,
    max_position_embeddings=128,
)


def _untouched(*_: object, **__: object) -> None:
    raise AssertionError("negotiation loads and starts nothing")


class AskingSpeculator(Speculator):
    """Has needs, and nothing else may be asked of it."""

    build_module = collate = loss = acceptance = save = load = drafter = _untouched

    def __init__(
        self,
        needs: Needs,
        *,
        topologies: str = "chain",
        formats: str = "module eagle3",
        trainable: bool = True,
    ) -> None:
        super().__init__(Options(), TARGET)
        self._needs = needs
        self.topologies = frozenset(topologies.split())
        self.formats = frozenset(formats.split())
        self.trainable = trainable

    @property
    def needs(self) -> Needs:
        return self._needs


class OfferingBackend(Backend):
    """Has provisions, and nothing else may be asked of it."""

    start = swap = status = finished = stop = _untouched

    def __init__(self, provides: Provides) -> None:
        super().__init__(Options())
        self._provides = provides

    @property
    def provides(self) -> Provides:
        return self._provides

    @property
    def url(self) -> str:
        raise AssertionError("negotiation loads and starts nothing")


NEEDS = Needs(features=frozenset({"aux_hidden_states", "last_hidden_state"}), aux_layers=(1, 4))
PROVIDES = Provides(
    features=frozenset({"aux_hidden_states", "last_hidden_state", "target_logsumexp"}),
    branch_rows=True,
    topologies=frozenset({"chain", "tree"}),
    formats=frozenset({"module", "eagle3"}),
    hot_swap="live",
)


def agree(speculator: Speculator, provides: Provides):
    backend = OfferingBackend(provides)
    return negotiate(speculator, backend, speculator_name="asking", backend_name="offering")


@pytest.mark.parametrize(
    ("topologies", "topology"), [("chain", "chain"), ("chain tree", "tree"), ("tree", "tree")]
)
def test_trees_are_used_where_both_sides_can(topologies, topology):
    speculator = AskingSpeculator(NEEDS, topologies=topologies)
    assert agree(speculator, PROVIDES).topology == topology


@pytest.mark.parametrize(
    ("formats", "chosen"),
    [("module eagle3", "module"), ("eagle3", "eagle3"), ("x eagle3", "eagle3")],
)
def test_the_speculators_own_module_is_preferred(formats, chosen):
    assert agree(AskingSpeculator(NEEDS, formats=formats), PROVIDES).format == chosen


def test_what_is_missing_is_shown_in_one_table():
    speculator = AskingSpeculator(
        Needs(
            features=frozenset({"aux_hidden_states", "last_hidden_state"}),
            aux_layers=(1, 5),
            branch_rows=True,
        ),
        topologies="tree",
        formats="medusa",
    )
    provides = Provides(
        features=frozenset({"last_hidden_state"}), formats=frozenset({"eagle", "eagle3"})
    )
    with pytest.raises(ConfigError) as raised:
        agree(speculator, provides)
    assert str(raised.value) == (
        "speculator 'asking' cannot work with backend 'offering': 6 of 7 requirements missing\n"
        "  needed                           backend provides\n"
        "  feature aux_hidden_states        last_hidden_state  missing\n"
        "  feature last_hidden_state        yes                ok\n"
        "  target layers 1, 5               0 to 4             missing\n"
        "  rows of rejected draft tokens    no                 missing\n"
        "  topology tree                    chain              missing\n"
        "  checkpoint format medusa         eagle, eagle3      missing\n"
        "  swapping drafters while serving  none               missing"
    )


def test_the_table_of_an_agreement_says_ok_everywhere():
    table = agree(AskingSpeculator(NEEDS), PROVIDES).table()
    assert "missing" not in table and table.count("  ok") == 6


def test_a_drafter_that_is_not_trained_needs_no_swaps():
    speculator = AskingSpeculator(Needs(), trainable=False)
    fixed = Provides(formats=frozenset({"module"}), hot_swap="none")
    assert agree(speculator, fixed).format == "module"
    with pytest.raises(ConfigError, match=r"swapping drafters while serving +none +missing"):
        agree(AskingSpeculator(Needs()), fixed)


def test_pausing_for_a_swap_is_enough():
    pausing = Provides(formats=frozenset({"module"}), hot_swap="pause")
    assert agree(AskingSpeculator(Needs()), pausing).topology == "chain"
