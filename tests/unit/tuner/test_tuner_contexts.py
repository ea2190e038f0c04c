"""Prompts lengthened to a context: the question stays last, texts of its kind come before it."""

import pytest

from tabletune_tuner.contexts import Wave, build_waves, lengthen
from tabletune_tuner.load import Prompt

BEGIN, SEPARATOR = 1, (0,)
CHAT, CODE = ((BEGIN, 10, 11), (BEGIN, 12, 13), (BEGIN, 14, 15)), ((BEGIN, 20, 21),)
PROMPTS, KINDS = (*CHAT, *CODE), ("chat", "chat", "chat", "code")


def test_texts_of_the_same_kind_come_nearest_before_the_question() -> None:
    assert lengthen(PROMPTS, KINDS, 9, SEPARATOR)[0] == (BEGIN, 14, 15, 0, 12, 13, 0, 10, 11)
    assert lengthen(PROMPTS, KINDS, 6, SEPARATOR)[1] == (BEGIN, 14, 15, 0, 12, 13)


def test_other_kinds_follow_when_the_own_is_used_up_and_then_all_again() -> None:
    assert lengthen(PROMPTS, KINDS, 12, SEPARATOR)[0] == (BEGIN, 20, 21, 0, 14, 15, 0, 12, 13, 0, 10, 11)
    assert lengthen(PROMPTS, KINDS, 15, SEPARATOR)[0] == (BEGIN, 12, 13, 0, 20, 21, 0, 14, 15, 0, 12, 13, 0, 10, 11)
    assert lengthen(((BEGIN, 5),), ("chat",), 6, SEPARATOR) == ((BEGIN, 5, 0, 5, 0, 5),), "one prompt has only itself"


@pytest.mark.parametrize("tokens", [4, 5, 6, 9, 40])
def test_every_prompt_gets_the_length_and_ends_as_it_did(tokens: int) -> None:
    made = lengthen(PROMPTS, KINDS, tokens, SEPARATOR)
    assert [len(prompt) for prompt in made] == [tokens] * 4
    assert all(prompt[0] == BEGIN and prompt.count(BEGIN) == 1 for prompt in made)
    assert [prompt[-2:] for prompt in made] == [prompt[1:] for prompt in PROMPTS]


def test_a_longer_prompt_stays_as_it_is() -> None:
    long: Prompt = (BEGIN, *range(100, 120))
    assert lengthen((*PROMPTS, long), (*KINDS, "chat"), 10, SEPARATOR)[4] == long


def test_prompts_of_a_model_without_a_token_to_begin_with() -> None:
    assert lengthen(((10, 11), (12, 13)), ("chat", "chat"), 5, SEPARATOR) == ((12, 13, 0, 10, 11), (10, 11, 0, 12, 13))


def test_without_a_wish_prompts_are_counted_as_they_are() -> None:
    assert build_waves(PROMPTS, KINDS, (), 100, SEPARATOR) == ((Wave(None, PROMPTS),), ())


def test_a_wave_for_each_context_the_shorter_first() -> None:
    waves, warnings = build_waves(PROMPTS, KINDS, (9, 6), 100, SEPARATOR)
    assert [(wave.context_tokens, {len(p) for p in wave.prompts}) for wave in waves] == [(6, {6}), (9, {9})]
    assert warnings == ()


def test_contexts_that_do_not_fit_are_cut_and_said() -> None:
    waves, warnings = build_waves(PROMPTS, KINDS, (9, 4000), 12, SEPARATOR)
    assert [wave.context_tokens for wave in waves] == [9, 12]
    assert warnings == ("Contexts of 4000 tokens do not fit into max_model_len beside an answer: 12 tokens are used.",)
    waves, _ = build_waves(PROMPTS, KINDS, (1000, 4000), 12, SEPARATOR)
    assert [wave.context_tokens for wave in waves] == [12], "nothing is counted twice"


def test_says_when_texts_must_repeat_to_fill_a_context() -> None:
    waves, (warning,) = build_waves(PROMPTS, KINDS, (40,), None, SEPARATOR)
    assert [wave.context_tokens for wave in waves] == [40]
    assert warning.startswith("All prompts together have 16 tokens, so their text repeats in a context of 40")
