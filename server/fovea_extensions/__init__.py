"""Extensions of Triton's protocol: shared memory, traces, settings of the log."""
