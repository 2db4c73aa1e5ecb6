#!/bin/sh
# Serves /repository (FOVEA_MODEL_REPOSITORY), with the options given; or runs another subcommand.
#   docker run IMAGE                        fovea serve
#   docker run IMAGE --threads 4            the same, with --threads 4
#   docker run IMAGE build MODEL.onnx ...   fovea build MODEL.onnx ...
# exec leaves fovea as process 1, so that it gets the SIGTERM of `docker stop`.
set -eu
case "${1:--}" in
    -*) exec fovea serve "$@" ;;
    *) exec fovea "$@" ;;
esac
