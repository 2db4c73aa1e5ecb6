#!/bin/sh
# Serves /repository, with the options given; or runs another subcommand of fovea.
#   docker run IMAGE                        fovea serve /repository --host 0.0.0.0
#   docker run IMAGE --threads 4            the same, with --threads 4
#   docker run IMAGE build MODEL.onnx ...   fovea build MODEL.onnx ...
# exec leaves fovea as process 1, so that it gets the SIGTERM of `docker stop`.
set -eu
case "${1:--}" in
    -*) exec fovea serve /repository --host 0.0.0.0 "$@" ;;
    *) exec fovea "$@" ;;
esac
