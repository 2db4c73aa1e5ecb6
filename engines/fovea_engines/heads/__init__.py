"""Decodes the outputs of models. Each file has the families of one lineage, or a shared part."""
