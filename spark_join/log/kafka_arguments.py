"""The arguments that name a cluster, its topics, and the properties of the connection."""

import argparse
from pathlib import Path

from pyspark.sql import SparkSession

from spark_join.errors import CouldNotVerify
from spark_join.log.client import Kafka, parse_properties


def add_kafka_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all of these flags but `--bootstrap`, which each command adds itself."""
    parser.add_argument("--prefix", default="notary", help="of the topics PREFIX.ordering and PREFIX.payload (default: notary)")
    parser.add_argument("--kafka-config", type=Path, metavar="FILE", help="how to connect: a properties file as Kafka's own tools take it")
    parser.add_argument(
        "--kafka-option", action="append", default=[], metavar="NAME=VALUE", help="one more such property; may be given several times"
    )


def chosen_kafka(session: SparkSession, chosen: argparse.Namespace) -> Kafka:
    """Returns the cluster that the arguments describe. Raises `CouldNotVerify`, and `OSError` for the properties file."""
    properties = {} if chosen.kafka_config is None else parse_properties(session, chosen.kafka_config.read_text())
    for option in chosen.kafka_option:
        name, equals, value = option.partition("=")
        if not equals or not name:
            raise CouldNotVerify(f"--kafka-option {option!r} should be NAME=VALUE, as in security.protocol=SSL")
        properties[name] = value
    return Kafka(chosen.bootstrap, chosen.prefix, properties)
