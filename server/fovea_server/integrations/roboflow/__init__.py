"""The HTTP API of Roboflow's inference server, for inference_sdk and other clients."""
