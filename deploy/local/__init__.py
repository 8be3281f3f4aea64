"""deploy.local: real Apache Kafka brokers on the loopback of this machine, for development, tests and benchmarks.

`up` returns when every broker serves, and `down` leaves nothing behind. This package signals only processes that it started:
it identifies each by its pid *and* its start time. Each broker is one process, a combined KRaft broker and controller, with
the safety settings of production (three replicas, two in sync, no unclean election) and the thread and memory settings of a
small machine.

    with Cluster.create(directory, brokers=3) as cluster:      # up; down at the end, even after an error
        producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap)
        cluster.kill(1)                                        # SIGKILL, as a crash would
        cluster.wait_until_serving()                           # the other two have taken over
        cluster.start(1)                                       # same ports, same data

Brokers may run in network namespaces instead, each with an address of its own (`Cluster.create(networks=…)`): `deploy.centres`
makes them.

From a shell: `python -P -m deploy.local up --brokers 3`, then `status`, `kill N`, `start N`, `stop N`, `pause N`, `resume
N`, `down`.

| file | subject |
|---|---|
| `cluster` | `Cluster`: a folder of brokers, and its operations |
| `settings` | the configuration of a broker: server properties, memory, timeouts |
| `state` | `cluster.json`: the brokers, their ports and processes |
| `ports` | ports that stay free for a broker while it is down |
| `process` | a process identified by pid and start time |
| `health` | the cluster's metadata, as each running broker reports it |
| `tether` | ends the processes of a `with` block whose own process died |
| `runtime` | a Java, Kafka's jars and a class archive: ready to run |
| `java`, `jars` | finds a Java; fetches the jars once |
| `golang` | third-party Go programs, built once |

Kafka's jars stay in `.cache/kafka/<version>`, or in the folder that NOTARY_KAFKA_HOME names; Kafka's tools in
`.cache/kafka-tools/<version>`, or in that of NOTARY_KAFKA_TOOLS_HOME. This package runs on Linux and macOS.
"""

from deploy.local.cluster import Cluster
from deploy.local.errors import CannotRun
from deploy.local.state import BrokerNetwork

__all__ = ["BrokerNetwork", "CannotRun", "Cluster"]
