"""Training in several processes: on a busy machine they wait for each other once a step.

One process with several threads would wait several hundred times in a step.
"""

import os

import torch
from torch import Tensor, distributed, nn


class Workers:
    """The processes that train together; one alone when not started by `torchrun`."""

    def __init__(self) -> None:
        self.count = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        self.first = self.rank == 0
        if self.count > 1:
            torch.set_num_threads(1)
            distributed.init_process_group("gloo")

    def average(self, model: nn.Module, done: float) -> float:
        """Average the gradients of all; return how far the first is, for all to agree on."""
        if self.count == 1:
            return done
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        progress = torch.tensor([done * self.count if self.first else 0.0])
        flat = torch.cat([*(gradient.flatten() for gradient in gradients), progress])
        distributed.all_reduce(flat)
        flat /= self.count
        self._spread(flat, gradients)
        return float(flat[-1])

    def close(self) -> None:
        """Let go of the others."""
        if self.count > 1:
            distributed.destroy_process_group()

    @staticmethod
    def _spread(flat: Tensor, gradients: list[Tensor]) -> None:
        start = 0
        for gradient in gradients:
            gradient.copy_(flat[start : start + gradient.numel()].view_as(gradient))
            start += gradient.numel()
