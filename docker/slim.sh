#!/bin/sh
# Removes what neither serving nor building needs from a virtual environment: slim.sh FOLDER [GPUS]
# GPUS are those to build TensorRT's engines for: all, none, or compute capabilities ("89 90").
# Each line names what it removes; tests/images build, serve and evaluate with what is left.
set -eu
cd "$1"/lib/python3*/site-packages
# OpenVINO runs on the CPU here, and reads ONNX and its own format.
rm -f openvino/libs/libopenvino_intel_gpu_plugin.so openvino/libs/libopenvino_intel_npu_plugin.so \
    openvino/libs/cache.json
for framework in tensorflow tensorflow_lite pytorch paddle gguf jax; do
    rm -f openvino/libs/libopenvino_"${framework}"_frontend.so*
done
# ONNX Runtime for programs in C; the Python module has its own copy inside.
rm -f onnxruntime/capi/libonnxruntime.so*
rm -rf onnxruntime/transformers onnxruntime/tools onnxruntime/quantization
# Tests, headers and sources of compiled modules.
rm -rf onnx/backend/test openvino/include
# Of these packages alone: elsewhere a folder of that name may be imported.
find numpy sympy mpmath -type d -name tests -prune -exec rm -rf {} +
find . -type f \( -name '*.h' -o -name '*.pyx' -o -name '*.pxd' -o -name '*.pyi' \) -delete
# Kernels from which TensorRT builds engines: for Windows, and for other GPUs.
gpus=${2:-all}
for library in tensorrt_libs/libnvinfer_builder_resource_*; do
    gpu=${library#*_resource_}
    gpu=${gpu%%.*}
    case $gpu in
        win*) wanted=none ;;
        ptx*) wanted=$([ "$gpus" = none ] || echo all) ;;
        *) wanted=$gpus ;;
    esac
    case " $wanted " in
        " all " | *" ${gpu#sm} "*) ;;
        *) rm -f "$library" ;;
    esac
done
# Debug information, which fills nine tenths of these files.
strip --strip-unneeded uvloop/*.so ml_dtypes/*.so rapidjson*.so
