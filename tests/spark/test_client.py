"""Tests brokers that cannot be reached with the given settings, and the same settings in the second client."""

import ssl

import pytest
from pyspark.sql import SparkSession

from spark_join.errors import CouldNotVerify
from spark_join.log.client import Kafka, parse_properties
from spark_join.log.kafka import read_kafka
from spark_join.log.sending import client_settings
from tests.spark.broker import Broker

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(900)]

SOON = {"default.api.timeout.ms": "1500", "request.timeout.ms": "1000"}


def test_no_log_there(spark: SparkSession, kafka_broker: Broker, kafka_prefix: str) -> None:
    """Missing topics, and brokers that are down or speak another protocol, are reported within the time limit, with advice."""
    with pytest.raises(CouldNotVerify, match=rf"has no topic {kafka_prefix}\.ordering, .* --prefix"):
        read_kafka(spark, Kafka(kafka_broker.bootstrap, kafka_prefix, {}))
    for bootstrap, properties in (
        ("127.0.0.1:1", SOON),
        (kafka_broker.tls, SOON),
        (kafka_broker.bootstrap, SOON | {"security.protocol": "SSL"}),
        (kafka_broker.tls, SOON | {"security.protocol": "SSL"}),  # a certificate authority that this Java does not know
        ("nowhere", {}),
        (kafka_broker.tls, SOON | {"security.protocol": "TLS"}),
    ):
        with pytest.raises(CouldNotVerify, match=rf"Kafka at {bootstrap} .*: \w+Exception: .*--kafka-config and --kafka-option"):
            read_kafka(spark, Kafka(bootstrap, kafka_prefix, properties))


def test_property_that_the_source_sets_itself(spark: SparkSession, kafka_broker: Broker, kafka_prefix: str) -> None:
    """Spark rejects some properties, and its message is passed on."""
    kafka_broker.make(kafka_prefix)
    given = {"auto.offset.reset": "latest"}
    with pytest.raises(CouldNotVerify, match=r"does not take these options: .*auto\.offset\.reset"):
        read_kafka(spark, Kafka(kafka_broker.bootstrap, kafka_prefix, given))


def test_properties_for_the_producer(spark: SparkSession, kafka_broker: Broker) -> None:
    """The producer of a restore connects with the given properties, or reports what it cannot do."""
    tls = client_settings(Kafka("b:1", "p", parse_properties(spark, kafka_broker.config.read_text())))
    context = tls["ssl_context"]
    assert (context.verify_mode, context.check_hostname, len(context.get_ca_certs())) == (ssl.CERT_REQUIRED, True, 1)
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    jaas = rf'sasl.jaas.config={module} required username\="u" password\="p\\"q";'
    text = f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism: SCRAM-SHA-512\nclient.id=x\n{jaas}"
    assert client_settings(Kafka("b:1", "p", parse_properties(spark, text))) == {
        "bootstrap_servers": "b:1",
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "u",
        "sasl_plain_password": 'p"q',
    }
    for given, message in (
        ({"ssl.provider": "x"}, r"cannot connect with ssl\.provider"),
        ({"ssl.truststore.location": "x.jks"}, r"set ssl\.truststore\.type=PEM"),
        ({"ssl.keystore.location": "/nowhere", "ssl.keystore.type": "PEM"}, r"cannot be used: .*No such file"),
    ):
        with pytest.raises(CouldNotVerify, match=message):
            client_settings(Kafka("b:1", "p", {"security.protocol": "SSL", **given}))
    with pytest.raises(CouldNotVerify, match=r"sasl\.jaas\.config with username"):
        client_settings(Kafka("b:1", "p", {"security.protocol": "SASL_SSL"}))
