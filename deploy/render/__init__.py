"""deploy.render: the files of an installation without Kubernetes, all made from one small file.

Each fact is only in the sites file. `python -P -m deploy.render SITES.toml --to DIR` writes a folder for each host, which becomes its
`/etc/notary`, and one for the operator. The same sites file gives the same bytes, so a diff shows the effect of a change.

| file | subject |
|---|---|
| `sites` | the sites file: its settings, and their checks |
| `kafka` | properties of controllers and brokers, the scripts that format their disks, and the ACLs |
| `worker` | `notary.toml` |
| `units` | systemd units with their sandboxes, users and folders |
| `tree` | the files of each host |

`deploy/sites` is the example and the manual.
"""

from deploy.render.sites import Sites, SitesError, read_sites
from deploy.render.tree import render

__all__ = ["Sites", "SitesError", "read_sites", "render"]
