"""What a profile is valid for: a name and a value for everything that step times depend on. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tabletune.argv import has_flag, option
from tabletune.profile import Fingerprint
from tabletune_operator.crd import Profile
from tabletune_operator.target import Speculation, Target

_GRAPH_OPTIONS = frozenset(
    {
        "--compilation-config",
        "-cc",
        "-O",
        "--optimization-level",
        "--cudagraph-capture-sizes",
        "--max-cudagraph-capture-size",
        "--attention-backend",
    }
)

# A fingerprint is readable text in a ConfigMap, so nothing that may be a secret enters it.
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD")


def build_fingerprint(
    target: Target, speculation: Speculation, profile: Profile, *, gpu_product: str, image_id: str | None, engine_version: str
) -> Fingerprint:
    """Fingerprint of the profile that would be measured now.

    Args:
        gpu_product: label of the nodes, such as NVIDIA-H200; "cpu" without a GPU.
        image_id: digest of the running image (`imageID` of the container's status); None: not known, the image's name counts.
        engine_version: as the running engine says (`/version`).
    """
    args = target.argv
    return Fingerprint.of(
        {
            "gpuProduct": gpu_product,
            "gpusPerReplica": target.gpu_request,
            "image": image_id or target.image,
            "engineVersion": engine_version,
            "model": model_of(target),
            "modelRevision": option(args, "--revision"),
            "method": speculation.method,
            "drafter": speculation.model,
            "speculativeOptions": json.dumps(speculation.options, sort_keys=True) if speculation.options else None,
            "maxDraftLength": speculation.max_draft_length,
            "tensorParallelSize": option(args, "--tensor-parallel-size", "-tp") or 1,
            "pipelineParallelSize": option(args, "--pipeline-parallel-size", "-pp") or 1,
            "dtype": option(args, "--dtype"),
            "quantization": option(args, "--quantization", "-q"),
            "kvCacheDtype": option(args, "--kv-cache-dtype"),
            "maxModelLen": option(args, "--max-model-len"),
            "maxNumSeqs": target.max_num_seqs,
            "maxNumBatchedTokens": option(args, "--max-num-batched-tokens"),
            "graphs": _graphs(target),
            "environment": _environment(target),
            "profileMaxBatchSize": profile.max_batch_size,
            "profilePromptTokens": profile.prompt_tokens,
            "profileOutputTokens": profile.output_tokens,
            # Only where there is one, so that profiles of targets without a script keep their fingerprint.
            **({"script": target.start.script} if target.start.script is not None else {}),
        }
    )


def model_of(target: Target) -> str | None:
    """The served model: the argument after `serve`, or `--model`."""
    named = option(target.argv, "--model")
    if named is not None or "serve" not in target.argv:
        return named
    after = target.argv[target.argv.index("serve") + 1 :]
    return after[0] if after and not after[0].startswith("-") else None


def _graphs(target: Target) -> str | None:
    """Every flag that decides what is compiled and captured, dotted ones too, in the order of the arguments."""
    found = ["--enforce-eager"] if has_flag(target.argv, "--enforce-eager") else []
    for at, arg in enumerate(target.argv):
        name, equals, value = arg.partition("=")
        spelled = name.replace("_", "-") if name.startswith("--") else name
        if spelled.partition(".")[0] in _GRAPH_OPTIONS or re.fullmatch(r"-O\d", spelled):
            follows = not equals and at + 1 < len(target.argv) and not re.fullmatch(r"-O\d", spelled)
            found.append(f"{name}={target.argv[at + 1] if follows else value}" if follows or equals else name)
    return " ".join(found) or None


def _environment(target: Target) -> str | None:
    """Variables of vLLM that have a literal value."""
    entries: list[Mapping[str, Any]] = next(
        (c.get("env") or [] for c in target.template["spec"]["containers"] if c["name"] == target.container), []
    )
    literal = {e["name"]: e.get("value", "") for e in entries if e["name"].startswith("VLLM_") and "valueFrom" not in e}
    return " ".join(f"{name}={value}" for name, value in sorted(literal.items()) if not _SECRET.search(name)) or None
