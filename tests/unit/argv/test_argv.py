"""Folding of vLLM's speculative flags: every spelling, vLLM's precedence, and nothing else touched."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tabletune.argv import ArgvError, fold_speculative_config, has_flag, option, speculative_items, with_speculative_config

EAGLE = '{"method": "eagle3", "model": "d", "num_speculative_tokens": 3}'
EAGLE_CONFIG = {"method": "eagle3", "model": "d", "num_speculative_tokens": 3}
NGRAM_CONFIG = {"method": "ngram", "num_speculative_tokens": 2}


@pytest.mark.parametrize(
    "args",
    [
        pytest.param(["--speculative-config", EAGLE], id="two items"),
        pytest.param([f"--speculative-config={EAGLE}"], id="one item"),
        pytest.param(["--speculative_config", EAGLE], id="underscore"),
        pytest.param(["-sc", EAGLE], id="short"),
        pytest.param([f"-sc={EAGLE}"], id="short with ="),
        pytest.param(["--speculative", EAGLE], id="abbreviation that argparse takes"),
        pytest.param(["--speculative-config", '{"method": "eagle3", "model": "d", "num-speculative-tokens": 3}'], id="dash in a key"),
        pytest.param(
            ["--speculative-config.method", "eagle3", "--speculative-config.model=d", "--speculative_config.num_speculative_tokens", "3"],
            id="dotted",
        ),
        pytest.param(["--spec-method", "eagle3", "--spec-model", "d", "--spec-tokens", "3"], id="three flags"),
        pytest.param(["--spec_method=eagle3", "--spec_model=d", "--spec_tokens=3"], id="three flags with _ and ="),
        pytest.param(["--speculative-config", '{"method": "eagle3", "model": "d"}', "--spec-tokens", "3"], id="flag completes JSON"),
        pytest.param(["--speculative-config", '{"method": "ngram"}', "--speculative-config", EAGLE], id="the last JSON wins"),
        pytest.param(["--spec-tokens", "9", "--spec-tokens", "3", "--spec-model=d", "--spec-method=eagle3"], id="the last flag wins"),
        pytest.param(
            [
                "--speculative-config.method", "eagle3", "--speculative-config.model", "d",
                "--speculative-config.num_speculative_tokens", "3", "--speculative-config", '{"method": "ngram", "x": 1}',
            ],
            id="dotted keys replace JSON as a whole, wherever it stands",
        ),
        pytest.param(["-sc.method", "ngram", f"--speculative-config={EAGLE}", "--speculative-config.model", "d",
                      "--speculative-config.method", "eagle3", "--speculative-config.num_speculative_tokens=3"],
                     id="the dotted object of the spelling seen last wins"),
    ],
)  # fmt: skip
def test_every_spelling_folds_to_the_same_config(args: list[str]) -> None:
    folded = fold_speculative_config(["vllm", "serve", "m", *args, "--port=8200"])
    assert folded.config == EAGLE_CONFIG
    assert folded.args == ("vllm", "serve", "m", "--port=8200")


@pytest.mark.parametrize(
    ("args", "config"),
    [
        pytest.param(["--speculative-config.a+", "x,y", "--speculative-config.a+", "z"], {"a": ["x", "y", "z"]}, id="lists grow"),
        pytest.param(["--speculative-config.a.b", "1", "--speculative-config.a.c", "text"], {"a": {"b": 1, "c": "text"}}, id="nested"),
        pytest.param(["--speculative-config.a", "1", "--speculative-config.a", "2"], {"a": 2}, id="a key again: the last wins"),
        pytest.param(["--speculative-config", "None"], None, id="vLLM's word for nothing"),
        pytest.param(["--speculative-config", "null"], None, id="JSON's word for nothing"),
        pytest.param(["-sc", "[1]", "--speculative-config.a", "1"], {"a": 1}, id="what is replaced need be no object"),
        pytest.param(
            ["-sc", '{"num-speculative-tokens": 2}', "--spec-tokens", "3"], {"num_speculative_tokens": 3}, id="a dash escapes vLLM's check"
        ),
        pytest.param(["--speculative-config", EAGLE, "--speculative-config="], None, id="taken back by an empty one"),
        pytest.param([], None, id="no flag"),
        pytest.param(["--speculative-config.model", "-x"], {"model": "-x"}, id="dotted keys take any next item, as in vLLM"),
    ],
)
def test_folds_as_vllm_does(args: list[str], config: dict[str, Any] | None) -> None:
    assert fold_speculative_config(args).config == config


@pytest.mark.parametrize(
    "args",
    [
        pytest.param(["--spec", "x"], id="an ambiguous abbreviation is vLLM's to refuse"),
        pytest.param(["--speculative-config-file", "x"], id="another flag that only begins so"),
        pytest.param(["--spec-model.x", "y"], id="keys of a flag that has none"),
        pytest.param(["--served-model-name", "speculative-config"], id="a value"),
        pytest.param(["--chat-template=--speculative-config"], id="a value with ="),
    ],
)
def test_leaves_other_arguments_alone(args: list[str]) -> None:
    folded = fold_speculative_config(args)
    assert (folded.config, folded.args) == (None, tuple(args))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        pytest.param(["--speculative-config"], "--speculative-config has no value", id="no value"),
        pytest.param(["--speculative-config", "--port", "1"], "--speculative-config has no value", id="another flag instead"),
        pytest.param(["--speculative_config", "{method}"], "--speculative_config '{method}' is not JSON", id="no JSON"),
        pytest.param(["--speculative-config=[1]"], "--speculative-config '[1]' is no JSON object", id="a list"),
        pytest.param(["--spec-tokens=three", "--spec-tokens=3"], "--spec-tokens 'three' is no whole number", id="no number"),
        pytest.param(["--spec-tokens=4", "--speculative-config", EAGLE], "keep one of them", id="a key twice"),
        pytest.param(["--speculative-config.", "x"], "has an empty key", id="no key"),
    ],
)
def test_names_flag_value_and_cure(args: list[str], words: str) -> None:
    with pytest.raises(ArgvError) as refused:
        fold_speculative_config(args)
    assert words in str(refused.value)
    assert str(refused.value).endswith(".")


def test_writes_one_flag_at_the_place_of_the_first() -> None:
    args = ["m", "--spec-method", "ngram", "--port=1", "--spec-tokens=2", "--x"]
    assert with_speculative_config(args, {"a": 1}) == ("m", "--speculative-config", '{"a":1}', "--port=1", "--x")
    assert with_speculative_config(["m"], {"a": 1}) == ("m", "--speculative-config", '{"a":1}')
    assert with_speculative_config(args, None) == ("m", "--port=1", "--x")


def test_says_off_where_leaving_the_flag_out_would_not_do() -> None:
    off = with_speculative_config(["m", "-sc", EAGLE, "--port=1"], None, explicit_off=True)
    assert off == ("m", "--speculative-config", "None", "--port=1")
    assert fold_speculative_config(off).config is None
    assert with_speculative_config(off, EAGLE_CONFIG, explicit_off=True) == with_speculative_config(off, EAGLE_CONFIG)


def test_tells_which_items_a_flag_takes() -> None:
    assert speculative_items(["m", "-sc", EAGLE, "--port=1", "--spec-tokens=3"]) == (1, 2, 4)


def test_reads_options() -> None:
    args = ["--max-num-seqs", "8", "--max_num_seqs=16", "-tp", "2", "--last"]
    assert option(args, "--max-num-seqs") == "16"
    assert option(args, "--tensor-parallel-size", "-tp") == "2"
    assert option(args, "--last") is None
    assert option(args, "--absent") is None
    assert has_flag(["--enforce_eager"], "--enforce-eager")
    assert not has_flag(["--enforce-eager", "--no-enforce-eager"], "--enforce-eager")


def spellings(config: dict[str, Any]) -> st.SearchStrategy[list[list[str]]]:
    """Arguments, each a group that must stay together, that say `config`."""
    text = json.dumps(config)
    whole = st.sampled_from(
        [["--speculative-config", text], [f"--speculative_config={text}"], ["-sc", text], [f"--speculative-conf={text}"]]
    )
    dotted = st.permutations(
        [[f"--speculative-config.{key}", json.dumps(value) if not isinstance(value, str) else value] for key, value in config.items()]
    )
    flags = {"method": "--spec-method", "model": "--spec-model", "num_speculative_tokens": "--spec_tokens"}
    short = st.permutations([[flags[key], str(value)] for key, value in config.items()])
    return st.one_of(whole.map(lambda one: [one]), dotted, short)


CONFIGS = st.sampled_from([EAGLE_CONFIG, NGRAM_CONFIG])
OTHERS = st.lists(
    st.sampled_from([["--port=8000"], ["--max-num-seqs", "64"], ["--enforce-eager"], ["-tp", "2"], ["--compilation-config.x", "3"], ["m"]]),
    max_size=6,
)  # fmt: skip


@st.composite
def argument_lists(draw: st.DrawFn) -> tuple[dict[str, Any], list[str], list[str]]:
    """A config, a list that spells it among other arguments, and those others in order."""
    config = draw(CONFIGS)
    others = draw(OTHERS)
    mixed: list[tuple[bool, list[str]]] = [(False, group) for group in others]
    for group in draw(spellings(config)):
        mixed.insert(draw(st.integers(0, len(mixed))), (True, group))
    return config, [item for _, group in mixed for item in group], [item for group in others for item in group]


@given(argument_lists())
def test_any_spelling_folds_and_others_keep_order_and_bytes(case: tuple[dict[str, Any], list[str], list[str]]) -> None:
    config, args, others = case
    folded = fold_speculative_config(args)
    assert folded.config == config
    assert list(folded.args) == others


@given(argument_lists(), st.sampled_from([EAGLE_CONFIG, NGRAM_CONFIG, None]))
def test_writing_gives_exactly_one_flag_and_is_stable(
    case: tuple[dict[str, Any], list[str], list[str]], wanted: dict[str, Any] | None
) -> None:
    _, args, others = case
    written = with_speculative_config(args, wanted)
    assert written.count("--speculative-config") == (0 if wanted is None else 1)
    assert fold_speculative_config(written).config == wanted
    assert list(fold_speculative_config(written).args) == others
    assert with_speculative_config(written, wanted) == written
