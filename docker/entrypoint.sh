#!/bin/sh
# Serves /repository (FOVEA_MODEL_REPOSITORY), with the options given; or runs another subcommand.
#   docker run IMAGE                        fovea serve
#   docker run IMAGE --threads 4            the same, with --threads 4
#   docker run IMAGE build MODEL.onnx ...   fovea build MODEL.onnx ...
# exec leaves fovea as process 1, so that it gets the SIGTERM of `docker stop`.
set -eu
# Where FOVEA_KEYS_FILE is not there yet, as at the first start of docker compose, this makes it, with
# two keys beside it: owner.key, which only the image's user reads, and prometheus.key, which reads the
# metrics and nothing else. The file comes last: a start that is cut off is done again.
first_keys() {
    folder=$(dirname "$FOVEA_KEYS_FILE")
    new="$folder/first-keys.json"
    rm -f "$new"
    (umask 077 && fovea key add owner --keys "$new" --scope predict,control,metrics >"$folder/owner.key")
    fovea key add prometheus --keys "$new" --scope metrics >"$folder/prometheus.key"
    rm -f "$folder/.first-keys.json.lock"
    mv "$new" "$FOVEA_KEYS_FILE"
}
case "${1:--}" in
    -*)
        case " $* " in
            *" --help"* | *" -h "* | *" --keys"* | *" --no-keys"*) ;;
            *) [ -z "${FOVEA_KEYS_FILE:-}" ] || [ -e "$FOVEA_KEYS_FILE" ] || first_keys ;;
        esac
        exec fovea serve "$@"
        ;;
    *) exec fovea "$@" ;;
esac
