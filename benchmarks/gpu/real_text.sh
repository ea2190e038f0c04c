#!/usr/bin/env bash
# usage: real_text.sh OUT MODEL [options of `tabletune profile`]
# A real model on real text: MODEL has weights (`dev/models/gemma` makes Gemma 3 270M's folder), guesses are looked up in the prompt
# (n-gram), and the shipped sample of prompts is asked at temperature 1, as Gemma is served.
set -euo pipefail
out=$1 model=$2
shift 2
exec tabletune profile --out "$out" --temperature-milli 1000 "$@" -- \
  vllm serve "$model" --served-model-name bench --port 8011 --max-model-len 2048 --max-num-seqs "${MAX_NUM_SEQS:-64}" \
  --no-enable-prefix-caching --gpu-memory-utilization 0.6 \
  --speculative-config '{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":4,"prompt_lookup_min":1}'
