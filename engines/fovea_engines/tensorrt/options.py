"""What a TensorRT build is asked for."""

from __future__ import annotations

from dataclasses import dataclass

from fovea_engines.cuda.gpu import gpu_here
from fovea_engines.tensorrt.plugins import Plugin
from fovea_engines.tensorrt.profiles import Profile
from fovea_preprocess.errors import InvalidOption

_LEVELS = range(6)


@dataclass(frozen=True, slots=True)
class BuilderOptions:
    """How a plan is built.

    Attributes:
        profiles: the batches it is made for, at least one profile.
        workspace: most bytes of GPU memory that a layer may use besides its tensors; None leaves
            it to TensorRT, which takes all.
        level: how long kernels are looked for, 0 to 5: more is slower to build and runs faster.
        capabilities: compute capabilities to build for ahead of time, e.g. ("80", "89"); empty
            builds for the GPU that is here.
        plugins: libraries of plugins that the model needs.

    Raises:
        InvalidOption: on construction, when a value is out of its range.
    """

    profiles: tuple[Profile, ...] = (Profile(1, 1, 1),)
    workspace: int | None = None
    level: int = 3
    capabilities: tuple[str, ...] = ()
    plugins: tuple[Plugin, ...] = ()

    def __post_init__(self) -> None:
        if not self.profiles:
            raise InvalidOption("profiles are none; give one, e.g. 1,4,8")
        if self.level not in _LEVELS:
            raise InvalidOption(f"--builder-level is {self.level}; it must be 0 to 5")
        if self.workspace is not None and self.workspace < 1:
            raise InvalidOption("--workspace must be 1 MiB or more; leave it out for all there is")

    @property
    def max_batch(self) -> int:
        """Most rows that a profile takes."""
        return max(profile.max for profile in self.profiles)


def target(options: BuilderOptions) -> str:
    """The GPUs that a plan is built for here, in words."""
    named = [f"SM{capability}" for capability in options.capabilities]
    return ", ".join(named) or str(gpu_here() or "the GPU here")
