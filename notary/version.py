"""The software version, as the package's metadata says it; one place, so that registers, HTTP and `--version` agree."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("kafka-notary")
except PackageNotFoundError:  # run from a checkout that is not installed
    VERSION = "0+checkout"
