"""The software version, from the package's metadata, for `register` records, HTTP and `--version`."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("kafka-notary")
except PackageNotFoundError:  # run from a checkout that is not installed
    VERSION = "0+checkout"
