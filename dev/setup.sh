#!/usr/bin/env bash
# The project's own environment: a virtual environment in the cache, keyed by pyproject.toml, with the checkout installed editable.
# Prints its path on stdout; everything else goes to stderr.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=dev/cache.sh
source "$root/dev/cache.sh"
venv="$TT_CACHE/venv-$(printf '%s' "$root" | cat - "$root/pyproject.toml" | sha256sum | cut -c1-12)"
if [ ! -e "$venv/ready" ]; then
  rm -rf "$venv"
  mkdir -p "$TT_CACHE"
  echo "Installing the development environment into $venv (1 to 2 minutes)" >&2
  if ! python3 -c 'import ensurepip' 2>/dev/null; then # Debian keeps it in a package of its own
    "$root/dev/cluster/packages" python3-venv
  fi
  python3 -m venv "$venv" >&2
  "$venv/bin/pip" install -q --disable-pip-version-check -e "$root[dev]" >&2
  touch "$venv/ready"
fi
echo "$venv"
