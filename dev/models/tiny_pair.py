"""Writes a tiny Qwen3 target and a drafter for it: `tiny_pair.py OUT` makes OUT/target and OUT/draft.

The drafter is the target's first layer with its embeddings and head. The target's other layers are damped, so that they change
the outcome only now and then: the less they are damped, the less the two agree.
"""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 1024
TARGET_LAYERS = 8
DAMPING = 0.06  # about 65 % of greedy tokens agree; 0.03 gives 81 %, 0.1 gives 49 %


def tokenizer() -> PreTrainedTokenizerFast:
    """Whole words: w0, w1, ..."""
    special = ["<unk>", "<s>", "</s>"]
    words = special + [f"w{i}" for i in range(VOCABULARY - len(special))]
    model = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    model.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=model, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>")


def config(layers: int) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=8,
        head_dim=64,
        max_position_embeddings=2048,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        tie_word_embeddings=False,
    )


def pair() -> tuple[Qwen3ForCausalLM, Qwen3ForCausalLM]:
    torch.manual_seed(0)
    target = Qwen3ForCausalLM(config(TARGET_LAYERS))
    with torch.no_grad():
        for layer in target.model.layers[1:]:
            layer.self_attn.o_proj.weight.mul_(DAMPING)
            layer.mlp.down_proj.weight.mul_(DAMPING)
    draft = Qwen3ForCausalLM(config(1))
    draft.model.embed_tokens = target.model.embed_tokens
    draft.model.layers[0] = target.model.layers[0]
    draft.model.norm = target.model.norm
    draft.lm_head = target.lm_head
    return target, draft


def agreement(target: Qwen3ForCausalLM, draft: Qwen3ForCausalLM) -> float:
    """Share of positions at which both find the same next token."""
    tokens = torch.randint(3, VOCABULARY, (32, 48))
    with torch.no_grad():
        return (target(tokens).logits.argmax(-1) == draft(tokens).logits.argmax(-1)).float().mean().item()


def main(out: Path) -> None:
    target, draft = pair()
    print(f"target and drafter agree on {agreement(target, draft):.0%} of tokens")
    words = tokenizer()
    for name, model in (("target", target), ("draft", draft)):
        model.to(torch.bfloat16).save_pretrained(out / name)
        words.save_pretrained(out / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
