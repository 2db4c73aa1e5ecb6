"""Defines the options of a TensorRT build."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fovea_engines.device import gpu_here
from fovea_engines.repository.files import file_sha256
from fovea_preprocess.errors import InvalidOption, NotFound

_LEVELS = range(6)

# Values that identify a shared library (see elf(5)): first bytes of the file, position of the file
# type, and file type ET_DYN (a 16-bit value).
_ELF, _TYPE_AT, _SHARED = b"\x7fELF", 16, 3


@dataclass(frozen=True, slots=True)
class Profile:
    """The batch sizes of an optimization profile: smallest, usual and largest."""

    min: int
    opt: int
    max: int

    def __post_init__(self) -> None:
        if not 1 <= self.min <= self.opt <= self.max:
            raise InvalidOption(
                f"profile is {self}, but its batch sizes must be 1 or more and ascend, e.g. 1,4,8"
            )

    def __str__(self) -> str:
        return f"{self.min},{self.opt},{self.max}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a profile such as "1,4,8".

        Raises:
            InvalidOption: the text is not a profile.
        """
        if not re.fullmatch(r"\s*\d{1,6}\s*(,\s*\d{1,6}\s*){2}", text):
            raise InvalidOption(
                f"profile is {text!r}, but must be three batch sizes MIN,OPT,MAX, e.g. 1,4,8"
            )
        return cls(*map(int, text.split(",")))


def default_profiles(max_batch: int) -> tuple[Profile, ...]:
    """Return profiles for batch sizes up to `max_batch`. One profile is for single images.

    TensorRT optimises the kernels of a profile for its usual batch size. Most requests have a
    single image. A separate profile keeps such a request from running kernels for large batches.
    """
    single = Profile(1, 1, 1)
    return (single,) if max_batch == 1 else (single, Profile(2, max_batch, max_batch))


@dataclass(frozen=True, slots=True)
class Plugin:
    """A library of TensorRT plugins.

    Attributes:
        path: absolute path at the build, with links resolved.
        sha256: SHA-256 of the file in hexadecimal.
    """

    path: Path
    sha256: str

    @classmethod
    def of(cls, path: Path) -> Self:
        """Return the path and digest of a library, without loading it.

        Raises:
            NotFound: the file does not exist.
            InvalidOption: the file is not a shared library.
        """
        try:
            with path.open("rb") as file:
                start = file.read(_TYPE_AT + 2)
        except FileNotFoundError as error:
            raise NotFound(f"the plugin library {path} does not exist") from error
        except OSError as error:
            raise InvalidOption(
                f"the plugin library {path} cannot be read: {error.strerror}"
            ) from error
        if start[:4] != _ELF or int.from_bytes(start[_TYPE_AT:], "little") != _SHARED:
            raise InvalidOption(
                f"{path} is not a shared library (ELF): give the .so file with the TensorRT plugins"
            )
        return cls(path.resolve(), file_sha256(path))


@dataclass(frozen=True, slots=True)
class BuilderOptions:
    """Options of a TensorRT build.

    Attributes:
        profiles: optimization profiles, with the batch sizes.
        workspace: largest GPU memory in bytes that a layer may use besides its tensors; None means
            TensorRT's default, which is all memory.
        level: optimization level, 0 to 5. With a higher level, the build takes longer and the
            engine runs faster.
        capabilities: compute capabilities of an ahead-of-time build, e.g. ("80", "89"); empty means
            this machine's GPU.
        plugins: libraries with TensorRT plugins that the model needs.

    Raises:
        InvalidOption: a value is out of its range.
    """

    profiles: tuple[Profile, ...] = (Profile(1, 1, 1),)
    workspace: int | None = None
    level: int = 3
    capabilities: tuple[str, ...] = ()
    plugins: tuple[Plugin, ...] = ()

    def __post_init__(self) -> None:
        if not self.profiles:
            raise InvalidOption("no profile is given: give one, e.g. 1,4,8")
        if self.level not in _LEVELS:
            raise InvalidOption(f"--builder-level is {self.level}; it must be from 0 to 5")
        if self.workspace is not None and self.workspace < 1:
            raise InvalidOption("--workspace must be 1 MiB or more; leave it out to use all memory")

    @property
    def max_batch(self) -> int:
        """Return the largest batch size of all profiles."""
        return max(profile.max for profile in self.profiles)


def target(options: BuilderOptions) -> str:
    """Return a text about the target GPUs of a build."""
    named = [f"SM{capability}" for capability in options.capabilities]
    return ", ".join(named) or str(gpu_here() or "the GPU here")


def parse_capabilities(text: str) -> tuple[str, ...]:
    """Parse compute capabilities such as "80,89" or "8.0,8.9", without duplicates."""
    names = (part.strip().lower().removeprefix("sm").lstrip("_") for part in text.split(","))
    return tuple(dict.fromkeys(name.replace(".", "") for name in names))
