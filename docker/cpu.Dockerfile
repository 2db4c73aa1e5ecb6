# syntax=docker/dockerfile:1
# Fovea on a CPU. Build from the repository root: docker build -f docker/cpu.Dockerfile .

# PYTHON and its digest: docs/how-to/deploy.md, "What goes into an image".
ARG PYTHON=python:3.13-slim-trixie

FROM ${PYTHON} AS builder
# docker/slim.sh strips libraries.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends binutils \
    && rm --recursive --force /var/lib/apt/lists/*
WORKDIR /src
COPY docker/slim.sh ./
COPY locks ./locks
# What makes the package, and lists what is in the image.
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m venv /opt/tools && /opt/tools/bin/python -m pip install --no-compile --require-hashes \
    --requirement locks/build.txt --requirement locks/sbom.txt
COPY pyproject.toml README.md LICENSE ./
COPY preprocess ./preprocess
COPY engines ./engines
COPY server ./server
COPY client ./client
RUN /opt/tools/bin/python -m pip wheel --no-deps --no-build-isolation --wheel-dir /src/wheels .
# A virtual environment moves to the next stage as one folder, without pip, its caches or headers.
RUN python -m venv --without-pip /opt/fovea
# An extra of pyproject.toml: remote, ray or streams. The files are complete, and that of streams is
# without opencv-python, which trackers names in vain.
ARG EXTRAS=
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip --python /opt/fovea/bin/python install --require-hashes --no-deps \
    --requirement "locks/${EXTRAS:-serve}.txt"
RUN python -m pip --python /opt/fovea/bin/python install --no-deps /src/wheels/fovea_serve-*.whl
RUN /src/slim.sh /opt/fovea
RUN /opt/tools/bin/cyclonedx-py environment --output-reproducible \
    --output-file /opt/fovea/sbom.cdx.json /opt/fovea/bin/python

FROM ${PYTHON}
# A fixed, numeric user: Kubernetes' runAsNonRoot needs the number, volumes need it to stay.
RUN useradd --uid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin fovea \
    && install --directory --owner=10001 --group=10001 /repository /keys
COPY --from=builder /opt/fovea /opt/fovea
COPY --chmod=755 docker/entrypoint.sh /usr/local/bin/fovea-entrypoint
# The root may be mounted read-only: nothing is written outside /repository, /tmp, and /keys where
# FOVEA_KEYS_FILE names a file there.
ENV PATH=/opt/fovea/bin:$PATH \
    HOME=/tmp \
    FOVEA_MODEL_REPOSITORY=/repository \
    FOVEA_HTTP_ADDRESS=0.0.0.0 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /tmp
VOLUME /repository
# HTTP, gRPC, metrics.
EXPOSE 8000 8001 8002
# Liveness, not readiness: an orchestrator restarts what is unhealthy, and a restart mends no model.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["fovea", "health", "--live"]
ENTRYPOINT ["fovea-entrypoint"]
