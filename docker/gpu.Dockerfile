# syntax=docker/dockerfile:1
# Fovea on an NVIDIA GPU. Build from the repository root: docker build -f docker/gpu.Dockerfile .
# The host needs NVIDIA's driver and container toolkit. TensorRT comes as wheels, pinned in
# constraints.txt, onto the image that the CPU's is built on: NVIDIA's TensorRT image would bring a
# whole toolkit with compilers, and a Python and versions of its own choice.

# pycuda comes as source alone. The image with compilers compiles it, against NVIDIA's headers.
FROM python:3.13-trixie AS pycuda
WORKDIR /src
COPY constraints.txt ./
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip install --no-deps --constraint /src/constraints.txt --target /opt/cuda \
    nvidia-cuda-crt nvidia-cuda-profiler-api nvidia-cuda-runtime
# The driver's library is the host's. To link with it, an empty library of its name is enough.
RUN gcc -shared -x c /dev/null -Wl,-soname,libcuda.so.1 -o /opt/cuda/libcuda.so
# Without cuRAND, which nothing here uses, the wheel needs the driver alone.
RUN printf '%s\n' \
    'CUDA_INC_DIR = ["/opt/cuda/nvidia/cu13/include"]' \
    'CUDADRV_LIB_DIR = ["/opt/cuda"]' \
    'CUDA_ENABLE_CURAND = False' > ~/.aksetup-defaults.py
RUN --mount=type=cache,target=/root/.cache/pip \
    LDFLAGS=-Wl,--no-as-needed python -m pip wheel --no-deps --constraint /src/constraints.txt \
    --wheel-dir /src/wheels pycuda

FROM python:3.13-slim-trixie AS builder
# docker/slim.sh strips libraries.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends binutils \
    && rm --recursive --force /var/lib/apt/lists/*
WORKDIR /src
COPY docker/slim.sh ./
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY preprocess ./preprocess
COPY engines ./engines
COPY server ./server
COPY client ./client
COPY --from=pycuda /src/wheels ./wheels
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip wheel --no-deps --wheel-dir /src/wheels .
# A virtual environment moves to the next stage as one folder, without pip, its caches or headers.
RUN python -m venv --without-pip /opt/fovea
# tensorrt, or rtx for TensorRT for RTX. What is downloaded as tensorrt's libraries fetches them from
# NVIDIA as it is installed.
ARG TENSORRT=tensorrt
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip --python /opt/fovea/bin/python install --constraint /src/constraints.txt \
    "$(echo /src/wheels/fovea_serve-*.whl)[$TENSORRT,otel]" /src/wheels/pycuda-*.whl
RUN /src/slim.sh /opt/fovea

FROM python:3.13-slim-trixie
# A fixed, numeric user: Kubernetes' runAsNonRoot needs the number, volumes need it to stay.
RUN useradd --uid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin fovea \
    && install --directory --owner=10001 --group=10001 /repository
COPY --from=builder /opt/fovea /opt/fovea
COPY --chmod=755 docker/entrypoint.sh /usr/local/bin/fovea-entrypoint
# The root may be mounted read-only: nothing is written outside /repository and /tmp.
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
