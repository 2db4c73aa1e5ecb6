"""Prints the surface of a TensorRT's Python bindings as JSON: python dump.py MODULE

Dotted name -> the type that it is or gives, where the bindings' own signatures say it, and the
names of its parameters. Runs in a process of its own: TensorRT 10 and 11 are both `tensorrt`.
"""

import enum
import importlib
import inspect
import json
import re
import sys


def walk(principal, prefix, surface):
    # A module holds imports too, which are not its own; a class is given what it inherits.
    for name in dir(principal):
        if name.startswith("_") and name != "__version__":
            continue
        member = inspect.getattr_static(principal, name)
        path = f"{prefix}{name}"
        if inspect.isclass(member):
            surface[path] = {"type": path, "parameters": parameters(member.__init__.__doc__)}
            walk(member, f"{path}.", surface)
        elif not inspect.ismodule(member):
            surface[path] = {"type": kind(member), "parameters": parameters(member.__doc__)}


def kind(member):
    """Name of the class that a function or property gives, or that a constant is of."""
    if isinstance(member, enum.Enum) or hasattr(type(member), "__members__"):
        return type(member).__qualname__
    text = (member.fget.__doc__ if isinstance(member, property) else member.__doc__) or ""
    found = re.search(r"-> ([\w.:]+)", text)
    return re.split(r"[.:]+", found[1])[-1] if found else None


def parameters(text):
    """Every name that a signature of the docstring gives a parameter."""
    lines = [line for line in (text or "").splitlines() if " -> " in line]
    return sorted({name for line in lines for name in re.findall(r"(\w+): ", line)})


found = {}
walk(importlib.import_module(sys.argv[1]), "", found)
sys.stdout.write(json.dumps(found))
