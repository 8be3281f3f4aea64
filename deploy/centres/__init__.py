"""deploy.centres: data centres on one machine, and a wide-area network between them that can be slowed, cut and healed.

The promise: each centre is a network namespace with one address, and reaches the others through us alone. Nothing leads out of them, to
this machine's own network or to any other, and nothing is left behind: no namespace and no device has a name, and all go with the
process that forwards, which goes with its owner, however that ends.

    with Centres(3, delay_ms=20) as centres:               # 20 ms each way between any two
        places = [Place(centres.host(n), centres.network(n)) for n in centres.numbers]
        with Cluster.create(directory, places=places) as cluster, inside(centres.network(1)):
            subprocess.Popen([...])                        # a process in centre 1
        centres.cut_off(2)                                 # nobody hears centre 2, and it hears nobody
        centres.cut(1, 3)                                  # what 1 sends does not arrive at 3; what 3 sends arrives at 1
        centres.heal()

    +--- centre 1: 10.77.1.1 ---+      +--- forwarder ---+      +--- centre 2: 10.77.2.1 ---+
    | broker, worker, clients   |      |  20 ms  ------> |      | broker, worker, clients   |
    |            device "wide"  |<---->|  <------ 20 ms  |<---->|  device "wide"            |
    +---------------------------+ TUN  +-----------------+ TUN  +---------------------------+

A cut is silent: no connection is refused or reset, packets are swallowed, as when a line is dug up. Those under way are lost too. A line
keeps the order of its packets, whatever its jitter.

| file | subject |
|---|---|
| `centres` | `Centres`: what the owner holds |
| `forward` | the process between the centres, `python -P -m deploy.centres.forward` |
| `lines` | what happens to a packet: delay, jitter, loss, cut; pure |
| `device` | a namespace and its TUN device |

Linux, and the rights CAP_SYS_ADMIN and CAP_NET_ADMIN: root. No tool is needed, neither `ip` nor netem.

Measured on two shared cores with other work on them: one TCP stream moves 0.8 to 1.0 GB/s, in packets of 65 KB; small packets 270,000 a
second; what the forwarder adds to a delay is 0.02 to 0.1 ms each way.
"""

from deploy.centres.centres import Centres

__all__ = ["Centres"]
