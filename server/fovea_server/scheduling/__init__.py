"""Queues requests in front of models: priorities, batches, sequences, ensembles, response cache."""
