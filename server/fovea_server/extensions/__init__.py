"""Extensions of Triton's protocol: shared memory, traces, log settings, restricted access."""
