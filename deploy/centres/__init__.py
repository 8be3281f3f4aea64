"""deploy.centres: data centres on one machine, and a wide-area network between them that can be slowed, cut and healed.

Each centre is a network namespace with one address. It reaches the other centres only through the forwarder process, and no other network,
not even this machine's own. Nothing is left behind: namespaces and devices have no names, and they end with the forwarder. The forwarder
ends with the process that started it, even if that crashes.

    with Centres(3, delay_ms=20) as centres:               # 20 ms each way between any two
        networks = [BrokerNetwork(centres.host(n), centres.network(n)) for n in centres.numbers]
        with Cluster.create(directory, networks=networks) as cluster, inside(centres.network(1)):
            subprocess.Popen([...])                        # a process in centre 1
        centres.cut_off(2)                                 # drops all packets to and from centre 2
        centres.cut(1, 3)                                  # drops packets from 1 to 3; packets from 3 to 1 arrive
        centres.heal()

    +--- centre 1: 10.77.1.1 ---+      +--- forwarder ---+      +--- centre 2: 10.77.2.1 ---+
    | broker, worker, clients   |      |  20 ms  ------> |      | broker, worker, clients   |
    |            device "wide"  |<---->|  <------ 20 ms  |<---->|  device "wide"            |
    +---------------------------+ TUN  +-----------------+ TUN  +---------------------------+

A cut is silent, as if a cable was broken: packets are dropped, those in flight included, and no connection is refused or reset. A line
keeps the order of its packets, whatever its jitter.

| file | subject |
|---|---|
| `centres` | `Centres`: the interface for the owner of some centres |
| `forward` | the process between the centres, `python -P -m deploy.centres.forward` |
| `lines` | the model of a line: delay, jitter, loss, cut; pure |
| `device` | a namespace and its TUN device |

This package needs Linux and the capabilities CAP_SYS_ADMIN and CAP_NET_ADMIN (root), but no tools: neither `ip` nor netem.

Measured on two shared cores with other work on them: one TCP stream moves 0.8 to 1.0 GB/s, in packets of 65 KB. The forwarder moves 270,000
small packets a second. It adds 0.02 to 0.1 ms to a delay, each way.
"""

from deploy.centres.centres import Centres

__all__ = ["Centres"]
