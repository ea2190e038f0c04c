#!/usr/bin/env bash
# usage: profile.sh OUT TARGET DRAFTER [options of `tabletune profile`]
# TARGET and DRAFTER are model folders; only their shapes matter (dummy weights). The present setting, which is compared as well, is the
# table of vLLM's page on dynamic speculative decoding for K = 3.
set -euo pipefail
out=$1 target=$2 drafter=$3
shift 3
exec tabletune profile --out "$out" --temperature-milli 0 "$@" -- \
  vllm serve "$target" --served-model-name bench --load-format dummy --port 8011 --max-model-len 2048 --max-num-seqs 256 \
  --no-enable-prefix-caching --gpu-memory-utilization 0.6 \
  --speculative-config '{"method":"eagle3","model":"'"$drafter"'","num_speculative_tokens":3,
    "num_speculative_tokens_per_batch_size":[[1,64,3],[65,128,1],[129,512,0]],
    "rejection_sample_method":"synthetic","synthetic_acceptance_rates":[0.7,0.5,0.3]}'
