"""deploy.local: real Apache Kafka brokers on the loopback of this machine, for development, tests and benchmarks.

The promise: `up` returns when every broker serves, `down` leaves nothing behind, and only processes that we started are
ever signalled (each is known by its pid *and* its start time). Brokers are combined KRaft brokers and controllers, one
process each, with the safety settings of production (three replicas, two in sync, no unclean election) and the thread
and memory settings of a small machine.

    with Cluster.create(directory, brokers=3) as cluster:      # up, and down at the end whatever happens
        producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap)
        cluster.kill(1)                                        # SIGKILL, as a crash would
        cluster.wait_until_serving()                           # the other two have taken over
        cluster.start(1)                                       # same ports, same data

Brokers may live in network namespaces instead, each with an address of its own (`Cluster.create(places=…)`): `deploy.centres`
makes them.

From a shell: `python -P -m deploy.local up --brokers 3`, then `status`, `kill N`, `start N`, `stop N`, `pause N`, `resume
N`, `down`.

| file | subject |
|---|---|
| `cluster` | `Cluster`: a folder of brokers, and all that can be done to it |
| `settings` | what a broker is told: server properties, memory, timeouts |
| `state` | `cluster.json`: which brokers, ports and processes there are |
| `ports` | ports that stay ours while a broker is down |
| `process` | a process known by pid and start time |
| `health` | what each running broker says of the cluster |
| `tether` | ends the brokers of a `with` block whose process died |
| `runtime` | a Java, Kafka's jars and a class archive: ready to run |
| `java`, `jars` | finding a Java; fetching the jars once |
| `golang` | Go programs of others, built once |
| `files` | locks and atomic writes |

What is fetched stays in `.cache/kafka/<version>`, or in the folder that NOTARY_KAFKA_HOME names; what Spark reads Kafka with in
`.cache/spark-kafka/<version>`, or in that of NOTARY_SPARK_KAFKA_HOME; Kafka's tools in
`.cache/kafka-tools/<version>`, or in that of NOTARY_KAFKA_TOOLS_HOME. Linux and macOS.
"""

from deploy.local.cluster import Cluster
from deploy.local.errors import CannotRun
from deploy.local.health import BrokerStatus, ClusterStatus
from deploy.local.settings import Settings
from deploy.local.state import Place

__all__ = ["BrokerStatus", "CannotRun", "Cluster", "ClusterStatus", "Place", "Settings"]
