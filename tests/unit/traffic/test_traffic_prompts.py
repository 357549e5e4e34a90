"""The prompt generator and prompt files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import islice
from random import Random

import pytest

from aurora_core.errors import ConfigError
from aurora_core.traffic.prompts import (
    DOMAINS,
    Prompt,
    generate,
    open_prompts,
    read_prompts,
    split_of,
)
from aurora_core.traffic.prompts.sql_tables import PARENTS, read_tables
from aurora_core.traffic.prompts.template import fill


@pytest.mark.parametrize("domain", DOMAINS)
def test_each_domain_has_at_least_3000_distinct_prompts(domain):
    texts = {prompt.text for prompt in generate([domain], num_prompts=3000)}
    assert len(texts) == 3000


@pytest.mark.parametrize("domain", DOMAINS)
def test_no_held_out_wording_occurs_in_training(domain):
    def wordings(split, seed):
        prompts = generate([domain], split=split, seed=seed, num_prompts=600)
        return {re.sub(r"\d+(?:[.,]\d+)*", "#", prompt.text) for prompt in prompts}

    held_out = wordings("holdout", 0)
    assert len(held_out) > 100
    for seed in (0, 1):
        assert not held_out & wordings("train", seed)


def test_split_ignores_numbers_so_that_other_numbers_do_not_change_sides():
    assert len({split_of(f"What is {n} + {n * 7}?") for n in range(1, 2000)}) == 1
    assert split_of("a loan of 1,000 at 2.5%") == split_of("a loan of 90 at 7%")


@pytest.mark.parametrize("domain", DOMAINS)
def test_prompts_are_short_complete_and_ascii(domain):
    for prompt in generate([domain], num_prompts=2000, seed=7):
        text = prompt.text
        assert prompt.domain == domain
        assert 15 <= len(text) <= 500
        assert text.isascii()
        assert text == text.strip()
        assert not re.search(r"\{[a-z]+\d?[:}]|(?<!\.)\.\.(?!\.)|  (?=[A-Z])", text), text


def test_sql_prompts_carry_a_schema():
    assert all("CREATE TABLE" in prompt.text for prompt in generate(["sql"], num_prompts=500))


def test_all_parents_of_joins_refer_to_tables():
    names = {table.name for table in read_tables()}
    assert all(set(children.split()) <= names for _, _, _, children in PARENTS)
    assert all(len(table.columns) >= 5 for table in read_tables())


def test_equal_seeds_give_equal_prompts_in_another_process():
    program = (
        "from aurora_core.traffic.prompts import generate\n"
        "import json; print(json.dumps([one.text for one in generate(seed=3, num_prompts=25)]))"
    )
    there = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    here = [prompt.text for prompt in generate(seed=3, num_prompts=25)]
    assert json.loads(there.stdout) == here
    assert here != [prompt.text for prompt in generate(seed=4, num_prompts=25)]


def test_mixed_gives_each_domain_an_equal_share():
    domains = [prompt.domain for prompt in generate(num_prompts=50)]
    assert all(domains.count(domain) == 10 for domain in DOMAINS)
    assert domains[:5] != domains[5:10] or domains[:5] != domains[10:15]


def test_ordered_sends_one_domain_after_the_other():
    prompts = generate(["code", "math"], order="ordered", num_prompts=7)
    assert [prompt.domain for prompt in prompts] == ["code"] * 4 + ["math"] * 3


def test_ordered_without_end_changes_domain_after_a_block():
    prompts = islice(generate(["code", "math"], order="ordered", block=2), 5)
    assert [prompt.domain for prompt in prompts] == ["code", "code", "math", "math", "code"]


def test_a_domain_yields_the_same_prompts_whatever_it_is_mixed_with():
    alone = [prompt.text for prompt in generate(["sql"], num_prompts=10)]
    mixed = [prompt.text for prompt in generate(num_prompts=50) if prompt.domain == "sql"]
    assert mixed == alone


def test_a_domain_that_is_used_up_starts_over(monkeypatch):
    letters = [letter for letter in "abcdefghijklmnop" if split_of(letter) == "train"]
    monkeypatch.setitem(DOMAINS, "tiny", lambda random: random.choice(letters))
    prompts = [prompt.text for prompt in islice(generate(["tiny"]), 2 * len(letters))]
    assert sorted(prompts[: len(letters)]) == sorted(prompts[len(letters) :]) == letters


def test_unknown_domain_is_refused_with_those_that_exist():
    with pytest.raises(
        ConfigError, match=r"no prompt domain 'poetry'; the generator has math, sql"
    ):
        generate(["math", "poetry"])
    with pytest.raises(ConfigError, match=r"no prompt domain given; the generator has"):
        generate([])


def test_template_repeats_values_and_draws_different_words():
    words = {"name": ("Ann", "Bob"), "gift": ("a {size:2-2} m rope",)}
    template = "{name} gives {name2} {gift} for {n:10-10}, so {n} less. {m:5000-5000,}"
    filled = fill(template, words, Random(0))
    assert re.fullmatch(
        r"(Ann gives Bob|Bob gives Ann) a 2 m rope for 10, so 10 less. 5,000", filled
    )
    assert {fill("{n:4-8/2}", {}, Random(seed)) for seed in range(50)} == {"4", "6", "8"}


def test_template_refuses_what_is_no_range():
    with pytest.raises(ValueError, match=r"'3..5' is not a range of numbers"):
        fill("{n:3..5}", {}, Random(0))


def test_files_give_prompts_and_conversations(tmp_path):
    path = tmp_path / "mine.jsonl"
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello\u2028there"},
    ]
    path.write_text(
        '{"prompt": "One?", "domain": "maths", "source": "me"}\n\n'
        + json.dumps({"messages": turns}, ensure_ascii=False)
        + "\n",
        encoding="utf-8",
    )
    first, second = read_prompts(path)
    assert first == Prompt("maths", "One?")
    assert first.as_messages() == [{"role": "user", "content": "One?"}]
    assert (second.domain, second.text) == ("mine", "Hello\u2028there")
    assert second.as_messages() == turns


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"prompt": "x"', "Invalid JSON"),
        ('["x"]', "Input should be an object"),
        ('{"text": "x"}', "neither a `prompt` nor `messages`"),
        ('{"prompt": 7}', "prompt: Input should be a valid string"),
        ('{"prompt": ""}', "prompt: String should have at least 1 character"),
        ('{"messages": [{"role": "user"}]}', r"messages\.0\.content: Field required"),
        ('{"messages": []}', "neither a `prompt` nor `messages`"),
    ],
)
def test_malformed_line_names_file_and_line(tmp_path, line, reason):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"prompt": "fine"}\n' + line + "\n")
    with pytest.raises(ConfigError, match=rf"^line 2 of .*bad\.jsonl' is not a prompt: .*{reason}"):
        read_prompts(path)


def test_unusable_files_are_refused_in_one_sentence(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.jsonl' cannot be read: No such file"):
        read_prompts(tmp_path / "none.jsonl")
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n\n")
    with pytest.raises(ConfigError, match=r"empty\.jsonl' holds no prompts"):
        read_prompts(empty)
    binary = tmp_path / "binary.jsonl"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"binary\.jsonl' is not UTF-8 text"):
        read_prompts(binary)


def test_a_file_can_be_split_without_overlap(tmp_path):
    path = tmp_path / "many.jsonl"
    texts = [prompt.text for prompt in generate(num_prompts=80)]
    texts += [prompt.text for prompt in generate(num_prompts=20, split="holdout")]
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    sides = [open_prompts(path, split=split) for split in ("train", "holdout")]
    assert [source.num_prompts for source in sides] == [80, 20]
    assert open_prompts(path).num_prompts == 100
    path.write_text(json.dumps({"prompt": texts[0]}) + "\n")
    with pytest.raises(ConfigError, match=r"none of the 1 prompts in .* falls on the holdout side"):
        open_prompts(path, split="holdout")


def test_a_source_can_be_read_twice():
    source = open_prompts(domains=["chat"], seed=5, num_prompts=6)
    assert [*source.prompts()] == [*source.prompts()]
    assert source.num_prompts == 6
    assert source.description == "chat, mixed, train, seed 5"
