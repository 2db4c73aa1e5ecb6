#!/bin/sh
# Serves /repository (FOVEA_MODEL_REPOSITORY), with the options given; or runs another subcommand.
#   docker run IMAGE                        fovea serve
#   docker run IMAGE --threads 4            the same, with --threads 4
#   docker run IMAGE build MODEL.onnx ...   fovea build MODEL.onnx ...
# exec leaves fovea as process 1, so that it gets the SIGTERM of `docker stop`.
set -eu
# The first start of docker compose makes two keys beside FOVEA_KEYS_FILE: owner.key, which only the
# image's user reads, and prometheus.key, which reads the metrics and nothing else.
first_keys() {
    folder=$(dirname "$FOVEA_KEYS_FILE")
    (umask 077 && fovea key add owner --scope predict,control,metrics >"$folder/owner.key")
    fovea key add prometheus --scope metrics >"$folder/prometheus.key"
}
case "${1:--}" in
    -*)
        if [ "${FOVEA_KEYS_FILE:-}" ] && ! [ -e "$FOVEA_KEYS_FILE" ]; then
            first_keys
        fi
        exec fovea serve "$@"
        ;;
    *) exec fovea "$@" ;;
esac
