"""The same commands for a cluster that somebody else has made: check it, and say what only its owner can do."""

from __future__ import annotations

import argparse
import shutil

from embedded.errors import ClusterError, run
from embedded.settings import Settings


def act(arguments: argparse.Namespace, settings: Settings) -> int:
    if arguments.command == "kubeconfig":
        print(settings.user_kubeconfig)
        return 0
    if arguments.command == "env":
        print(f"export KUBECONFIG={settings.user_kubeconfig}")
        return 0
    if arguments.command == "down":
        print(f"The cluster of {settings.user_kubeconfig} is not ours: left as it is.")
        return 0
    if arguments.command == "load":
        print("Load these images into the cluster yourself. With kind:")
        for archive in arguments.archives:
            print(f"  kind load image-archive {archive}")
        return 0
    kubectl = shutil.which("kubectl") or str(settings.bin / "kubectl")
    command = [kubectl, f"--kubeconfig={settings.user_kubeconfig}", "--request-timeout=10s"]
    try:
        run([*command, "get", "--raw=/readyz"])
        print(run([*command, "get", "nodes", "--label-columns=nvidia.com/gpu.product"]), end="")
    except (ClusterError, FileNotFoundError) as error:
        raise ClusterError(f"The cluster of KUBECONFIG={settings.user_kubeconfig} does not answer: {error}") from error
    return 0
