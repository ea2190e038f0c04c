"""Prompts lengthened to a wanted context: other prompts of the same kind go before, so that the question stays the last thing. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tabletune_tuner.load import Prompt


@dataclass(frozen=True, slots=True)
class Wave:
    """Prompts to count acceptance on together; `context_tokens`: what they were lengthened to, None as they are."""

    context_tokens: int | None
    prompts: tuple[Prompt, ...]


def build_waves(
    prompts: Sequence[Prompt], kinds: Sequence[str], contexts: Sequence[int], most: int | None, separator: Prompt
) -> tuple[tuple[Wave, ...], tuple[str, ...]]:
    """One wave for each context, or one of the prompts as they are; and warnings.

    Args:
        prompts: token ids, each with the token that begins a text if the model has one.
        kinds: of each prompt.
        contexts: wanted lengths in tokens, a prompt and what goes before it.
        most: tokens that fit into the engine beside an answer; None = not known.
        separator: token ids to put between two prompts.
    """
    if not contexts:
        return (Wave(None, tuple(prompts)),), ()
    warnings = []
    if most is not None and max(contexts) > most:
        warnings.append(f"Contexts of {max(contexts)} tokens do not fit into max_model_len beside an answer: {most} tokens are used.")
    wanted = sorted({tokens if most is None else min(tokens, most) for tokens in contexts})
    have = sum(len(prompt) + len(separator) for prompt in prompts)
    if wanted[-1] > have:
        warnings.append(
            f"All prompts together have {have} tokens, so their text repeats in a context of {wanted[-1]}, and acceptance is flattering. "
            "Give more or longer prompts."
        )
    return tuple(Wave(tokens, lengthen(prompts, kinds, tokens, separator)) for tokens in wanted), tuple(warnings)


def lengthen(prompts: Sequence[Prompt], kinds: Sequence[str], tokens: int, separator: Prompt) -> tuple[Prompt, ...]:
    """Each prompt with others before it, so that it has `tokens`; a longer one stays as it is.

    Prompts of the same kind come nearest; when they are used up others follow, and then all again.
    """
    begin = prompts[0][:1] if len({prompt[:1] for prompt in prompts}) == 1 else ()
    bodies = [prompt[len(begin) :] for prompt in prompts]
    room = tokens - len(begin)

    def build(at: int) -> Prompt:
        if len(bodies[at]) >= room:
            return prompts[at]
        later = [(at + step) % len(bodies) for step in range(1, len(bodies))]
        order = sorted(later, key=lambda other: kinds[other] != kinds[at]) or [at]  # stable: by kind, then in turn
        pieces = [bodies[at]]
        have, turn = len(bodies[at]), 0
        while have < room:
            piece = bodies[order[turn % len(order)]] + separator
            pieces.append(piece)
            have, turn = have + len(piece), turn + 1
        text = tuple(token for piece in reversed(pieces) for token in piece)
        return begin + text[len(text) - room :]

    return tuple(build(at) for at in range(len(prompts)))
