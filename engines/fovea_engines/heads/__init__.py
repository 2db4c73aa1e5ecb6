"""Decodes the outputs of models.

A head is a class that decodes the outputs of a family of models, such as YOLOX. Each file has
related families, or code that several heads use.
"""
