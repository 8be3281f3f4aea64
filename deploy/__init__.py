"""deploy: the environment of the notary, for development and in production.

`deploy.local` runs real Kafka brokers on this machine's loopback. `deploy.centres` makes data centres on this machine, with a
wide-area network between them that can be cut. `deploy.namespace` moves a thread into one of them.

`deploy.render` makes the files of an installation without Kubernetes from one small file, and `deploy.pki` makes its certificates.
`deploy/sites` and `deploy/one-box` have the manuals. `deploy.image` builds the container images, and `deploy.manifests` renders and checks
the Kubernetes manifests. All of them run other programs through `deploy.local.commands`.
"""
