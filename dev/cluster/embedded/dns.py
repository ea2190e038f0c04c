"""CoreDNS as a process of this machine: pods find Services by name, and the rest of the world through the machine."""

from __future__ import annotations

from functools import partial

from embedded.daemons import Daemon, answers
from embedded.pki import kubeconfig
from embedded.settings import CLUSTER_DOMAIN, DNS_ADDRESS, Settings

READY = "127.0.0.1:8181"


def daemon(settings: Settings) -> Daemon:
    corefile = settings.root / "Corefile"
    corefile.write_text(f"""\
.:53 {{
    bind {DNS_ADDRESS}
    ready {READY}
    errors
    cache 5
    kubernetes {CLUSTER_DOMAIN} in-addr.arpa {{
        kubeconfig {kubeconfig(settings, "dns")}
    }}
    forward . /etc/resolv.conf
}}
""")
    argv = (str(settings.bin / "coredns"), "-conf", str(corefile))
    ready = partial(answers, f"http://{READY}/ready")
    return Daemon("coredns", argv, ready, configs=(corefile,), listens=(f"{DNS_ADDRESS}:53", READY))
