"""The software version, from the package's metadata. `register` records, HTTP and `--version` all take it from here."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("kafka-notary")
except PackageNotFoundError:  # run from a checkout that is not installed
    VERSION = "0+checkout"
