"""Writes what of pip's configuration uv has to be told, as it reads none: lines for a shell."""

import ast
import shlex
import subprocess
import sys
from pathlib import Path

# Option of pip -> variable of uv, and what is between several values; pip has spaces.
VARIABLES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "no-index": ("UV_NO_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "constraint": ("UV_CONSTRAINT", " "),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "proxy": ("ALL_PROXY", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
    "default-timeout": ("UV_HTTP_TIMEOUT", " "),
}
# The later ones override the former.
SECTIONS = ("global", "install", ":env:")

listed = subprocess.check_output([sys.executable, "-m", "pip", "config", "list"], text=True)
# Of all indexes the best version, as pip has it.
lines = ["export UV_INDEX_STRATEGY=unsafe-best-match"]
for section in SECTIONS:
    for name, _, value in (line.partition("=") for line in listed.splitlines()):
        place, _, option = name.rpartition(".")
        if place == section and option in VARIABLES:
            variable, between = VARIABLES[option]
            words = between.join(ast.literal_eval(value).split())
            lines.append(f"export {variable}={shlex.quote(words)}")
Path(sys.argv[1]).write_text("\n".join(lines) + "\n")
