"""One queue per model: priorities, batches, sequences, ensembles, response cache."""
