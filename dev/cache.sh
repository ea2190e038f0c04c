# Sourced by everything that builds: where build artefacts live (outside the checkout) and how they are keyed.
TT_CACHE="${TABLETUNE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tabletune}"

# tt_key FILE...: 12 hex digits of the files' contents; the same inputs give the same artefact.
tt_key() { cat "$@" | sha256sum | cut -c1-12; }
