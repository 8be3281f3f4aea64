"""deploy: what runs the notary's surroundings.

`deploy.local` runs real Kafka brokers on this machine's loopback. `deploy.centres` makes data centres on this machine, with a
wide-area network between them that can be cut. `deploy.namespace` is how a thread steps into one of them.

`deploy.render` makes the files of an installation without Kubernetes from one small file, `deploy.pki` its certificates. `deploy/sites` and
`deploy/one-box` say how to use them. `deploy.image` builds the container images, `deploy.manifests` renders and checks the Kubernetes
manifests. `deploy.commands` runs other programs for them.
"""
