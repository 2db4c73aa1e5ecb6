# syntax=docker/dockerfile:1
# Fovea on an NVIDIA GPU. Build from the repository root: docker build -f docker/gpu.Dockerfile .
# The host needs NVIDIA's driver and container toolkit. TensorRT comes as wheels, pinned in
# locks/, onto the image that the CPU's is built on: NVIDIA's TensorRT image would bring a
# whole toolkit with compilers, and a Python and versions of its own choice.

# PYTHON, PYTHON_WITH_COMPILERS and their digests: docs/how-to/deploy.md, "What goes into an image".
ARG PYTHON=python:3.13-slim-trixie
ARG PYTHON_WITH_COMPILERS=python:3.13-trixie

# pycuda comes as source alone. The image with compilers compiles it, against NVIDIA's headers.
FROM ${PYTHON_WITH_COMPILERS} AS pycuda
WORKDIR /src
COPY locks ./locks
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip install --require-hashes --requirement locks/cuda-headers.txt --target /opt/cuda
# The driver's library is the host's. To link with it, an empty library of its name is enough.
RUN gcc -shared -x c /dev/null -Wl,-soname,libcuda.so.1 -o /opt/cuda/libcuda.so
# Without cuRAND, which nothing here uses, the wheel needs the driver alone.
RUN printf '%s\n' \
    'CUDA_INC_DIR = ["/opt/cuda/nvidia/cu13/include"]' \
    'CUDADRV_LIB_DIR = ["/opt/cuda"]' \
    'CUDA_ENABLE_CURAND = False' > ~/.aksetup-defaults.py
RUN --mount=type=cache,target=/root/.cache/pip \
    LDFLAGS=-Wl,--no-as-needed python -m pip wheel --require-hashes \
    --requirement locks/pycuda.txt --wheel-dir /src/wheels

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
COPY --from=pycuda /src/wheels ./wheels
RUN /opt/tools/bin/python -m pip wheel --no-deps --no-build-isolation --wheel-dir /src/wheels .
# A virtual environment moves to the next stage as one folder, without pip, its caches or headers.
RUN python -m venv --without-pip /opt/fovea
# tensorrt, or rtx for TensorRT for RTX. What is downloaded as tensorrt's libraries fetches them from
# NVIDIA as it is installed.
ARG TENSORRT=tensorrt
# pycuda is the one that was compiled: it is there already when what it needs is installed.
# TensorRT comes as source; pip (25.3 and newer) checks the hashes of what makes wheels of it, too.
RUN python -m pip --python /opt/fovea/bin/python install --no-deps /src/wheels/pycuda-*.whl
RUN --mount=type=cache,target=/root/.cache/pip \
    PIP_BUILD_CONSTRAINT=locks/tensorrt-build.txt \
    python -m pip --python /opt/fovea/bin/python install --require-hashes \
    --requirement "locks/$TENSORRT.txt" --requirement locks/pycuda.txt
RUN python -m pip --python /opt/fovea/bin/python install --no-deps /src/wheels/fovea_serve-*.whl
# For which GPUs the image builds engines: all, none (it serves only), or compute capabilities, as
# in "89 90". TensorRT has a library for each, 2 GB together.
ARG BUILDS_FOR=all
RUN /src/slim.sh /opt/fovea "$BUILDS_FOR"
RUN /opt/tools/bin/cyclonedx-py environment --output-reproducible \
    --output-file /opt/fovea/sbom.cdx.json /opt/fovea/bin/python

FROM ${PYTHON}
# A fixed, numeric user: Kubernetes' runAsNonRoot needs the number, volumes need it to stay.
RUN useradd --uid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin fovea \
    && install --directory --owner=10001 --group=10001 /repository /keys /tmp/.cache /tmp/.cache/fovea
COPY --from=builder /opt/fovea /opt/fovea
COPY --chmod=755 docker/entrypoint.sh /usr/local/bin/fovea-entrypoint
# The root may be mounted read-only: nothing is written outside /repository, /tmp, and /keys where
# FOVEA_KEYS_FILE names a file there.
# NVIDIA's container toolkit reads what of the driver to bring in: CUDA, and nvidia-smi.
ENV PATH=/opt/fovea/bin:$PATH \
    HOME=/tmp \
    FOVEA_MODEL_REPOSITORY=/repository \
    FOVEA_HTTP_ADDRESS=0.0.0.0 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001:10001
WORKDIR /tmp
VOLUME /repository
# HTTP, gRPC, metrics.
EXPOSE 8000 8001 8002
# Liveness, not readiness: an orchestrator restarts what is unhealthy, and a restart mends no model.
HEALTHCHECK --interval=10s --timeout=5s --start-period=180s --retries=3 \
    CMD ["fovea", "health", "--live"]
ENTRYPOINT ["fovea-entrypoint"]
