# One image for every role: operator, sidecar, tuner and the engine plugin's copy. A role is chosen by its entry point:
# tabletune-operator, tabletune-sidecar, tabletune-tuner, or python3 -m tabletune_engine.install FOLDER.
# Builds on any base with Python 3.11 or newer and its venv module.
ARG BASE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE} AS build
# A virtual environment, because distributions forbid installing beside their own packages (PEP 668).
RUN python3 -m venv /opt/tabletune
WORKDIR /src
# The dependencies first: they change seldom, and stay a layer of their own.
COPY pyproject.toml README.md LICENSE ./
RUN python3 -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; \
print(*{d for e in ("operator", "sidecar", "tuner") for d in p[e]}, sep="\n")' > /tmp/requirements.txt \
 && /opt/tabletune/bin/pip install --no-cache-dir --disable-pip-version-check -r /tmp/requirements.txt
COPY core core
COPY engine engine
COPY tuner-job tuner-job
COPY sidecar sidecar
COPY operator operator
COPY cli cli
RUN /opt/tabletune/bin/pip wheel --no-cache-dir --disable-pip-version-check --no-deps --wheel-dir /tmp/dist . \
 && /opt/tabletune/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps /tmp/dist/*.whl \
 && /opt/tabletune/bin/pip check \
 && /opt/tabletune/bin/python3 -m compileall -q /opt/tabletune/lib

FROM ${BASE}
COPY --from=build /opt/tabletune /opt/tabletune
# PYTHONDONTWRITEBYTECODE: the root file system may be read-only, and everything is compiled above.
ENV PATH=/opt/tabletune/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp
WORKDIR /tmp
USER 65532:65532
CMD ["tabletune-operator"]
