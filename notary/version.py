"""The software version. `register` records, HTTP, `--version` and the package's metadata (pyproject.toml) all take it from here."""

VERSION = "0.1.0"
