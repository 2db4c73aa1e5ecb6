"""Names in Serve."""

MODELS = "fovea"
"""The application of the models, each a deployment of its name."""

ROSTER = "@roster"
"""The deployment in it that tells the fronts what is deployed. No model can have this name."""

FRONTS = "fovea-fronts"
"""The application of the fronts, which stays when models are deployed anew."""

FRONT = "@front"
"""Its deployment."""
