"""deploy.manifests: renders the Kubernetes manifests in `deploy/kubernetes` and checks them without a cluster.

If `check` accepts the manifests, they fit the schemas of an API server with these custom resources. Kustomize renders each overlay. Then
every object is compared with the schema of its kind, strictly: an unknown field or kind is an error. The schemas come from the projects
themselves:

| kinds | schemas from |
|---|---|
| built-in ones, of the oldest and the newest Kubernetes in `KUBERNETES_VERSIONS` | kubernetes-validate |
| Strimzi's | its own generator, run on its published classes |
| Prometheus Operator's, cert-manager's | the definitions in their Go modules |

`check` does not evaluate CEL rules (`x-kubernetes-validations`) and admission: `make manifests-live` does, on a real API server
(`tests/deploy/manifests/test_live.py`). Promtool checks the Prometheus rules.

    python -P -m deploy.manifests fetch        # once: kustomize, promtool, the definitions of custom resources
    python -P -m deploy.manifests check        # render and check all overlays
    python -P -m deploy.manifests render three-zones
    python -P -m deploy.manifests dashboard    # write the dashboard's JSON again from its table

| file | subject |
|---|---|
| `tools` | third-party tools and definitions, fetched and built at pinned versions into `.cache/manifests` |
| `render` | kustomize, and the objects that it prints; Prometheus rules, checked by promtool |
| `schemas` | the strict schema of a kind |
| `dashboard` | the Grafana dashboard, from a table of its panels |
"""

from deploy.manifests.dashboard import DASHBOARD, PANELS, dashboard
from deploy.manifests.render import KUBERNETES, MIRROR, OVERLAYS, Manifest, name_of, render, rules_of
from deploy.manifests.schemas import Schemas
from deploy.manifests.tools import Kubernetes, Tools, build_kubernetes, fetch

__all__ = [
    "DASHBOARD",
    "KUBERNETES",
    "MIRROR",
    "OVERLAYS",
    "PANELS",
    "Kubernetes",
    "Manifest",
    "Schemas",
    "Tools",
    "build_kubernetes",
    "dashboard",
    "fetch",
    "name_of",
    "render",
    "rules_of",
]
