"""deploy.render: the files of an installation without Kubernetes, all made from one small file.

The promise: nothing is edited twice. `python -P -m deploy.render SITES.toml --to DIR` writes one folder for each host, which is its
`/etc/notary`, and one for the operator. The same file gives the same bytes, so a diff shows what a change will do.

| file | subject |
|---|---|
| `sites` | the sites file: what it may say, and what is wrong with it |
| `kafka` | properties of controllers and brokers, the scripts that format their disks, and who may do what |
| `worker` | `notary.toml` |
| `units` | systemd units with their sandboxes, users and folders |
| `tree` | which host gets which of these |

`deploy/sites` is the example and the manual.
"""

from deploy.render.sites import Sites, SitesError, read_sites
from deploy.render.tree import render

__all__ = ["Sites", "SitesError", "read_sites", "render"]
