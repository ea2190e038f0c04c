"""Writes model folders without weights: `make_models.py SHAPE OUT` makes OUT/target and OUT/drafter, for `--load-format dummy`.

Step times depend on shapes, not on what weights say. Shapes are those of the models' published configs: Qwen3-4B and Qwen3-30B-A3B with
EAGLE-3 drafters of one Llama layer and 32,000 draft tokens; the second drafter is six times as wide inside as its hidden size, as that of
Qwen3-235B-A22B is (nm-testing/Qwen3-235B-A22B-EAGLE3-converted-speculators-lmsys: 24,576 of 4,096).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers

VOCABULARY = 151_936
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 40_960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attention_bias": False,
    "head_dim": 128,
    "num_attention_heads": 32,
}
DENSE = COMMON | {"hidden_size": 2560, "intermediate_size": 9728, "num_key_value_heads": 8}
MIXTURE = COMMON | {"hidden_size": 2048, "intermediate_size": 6144, "num_key_value_heads": 4}
EXPERTS: dict[str, Any] = {
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
DRAFTER: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "num_hidden_layers": 1,
    "draft_vocab_size": 32_000,
    "tie_word_embeddings": False,
    "mlp_bias": False,
}
SHAPES: dict[str, dict[str, dict[str, Any]]] = {
    "qwen3-4b": {
        "target": DENSE
        | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 36, "tie_word_embeddings": True},
        "drafter": DENSE | DRAFTER,
    },
    "qwen3-30b-a3b": {
        "target": MIXTURE
        | EXPERTS
        | {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_hidden_layers": 48, "tie_word_embeddings": False},
        "drafter": MIXTURE | DRAFTER | {"intermediate_size": 12_288},
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    for role, config in SHAPES[options.shape].items():
        write(options.out / role, config)


def write(folder: Path, config: dict[str, Any]) -> None:
    """The config, and a tokenizer of whole words (w0, w1, ...), for prompts need one."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    special = ["<unk>", "<s>", "</s>"]
    words = special + [f"w{i}" for i in range(VOCABULARY - len(special))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))  # noqa: S106 - no password
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names) + "\n")


if __name__ == "__main__":
    main()
