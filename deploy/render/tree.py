"""Assigns the rendered files to hosts, and writes them."""

from pathlib import Path

from deploy.render import kafka, units, worker
from deploy.render.sites import Site, Sites, broker_name, controller_name

LOG4J2 = Path(__file__).parents[1] / "kafka" / "log4j2.xml"
OPERATOR = "operator"


def render(sites: Sites) -> dict[str, str]:
    """Renders all files, as text by path: those of a host under `SITE/HOST`, those of the operator under `operator`."""
    files: dict[str, str] = {}
    for site in sites.site:
        for host in site.hosts:
            of_host = _host(sites, site, host)
            files |= {f"{site.name}/{host}/{name}": text for name, text in of_host.items()}
    operator = sites.clients.operators[0]
    files[f"{OPERATOR}/client.properties"] = kafka.client_properties(sites, operator)
    files[f"{OPERATOR}/log-settings.toml"] = worker.log_settings_toml(sites, operator)
    files[f"{OPERATOR}/init.sh"] = worker.init_script(sites)
    return files


def _host(sites: Sites, site: Site, host: str) -> dict[str, str]:
    """Renders the files of one host's configuration folder, as text by name."""
    files: dict[str, str] = {}
    folders: dict[str, str] = {}
    for node in site.controllers:
        if node.host == host:
            name = controller_name(node)
            files["controller.properties"] = kafka.controller_properties(sites, node)
            files["format-controller.sh"] = kafka.format_script(sites, "controller.properties", name)
            files["kafka-controller.service"] = units.kafka_unit(sites, "controller", name)
            folders[kafka.data_folder(sites, name)] = "kafka"
    for node in site.brokers:
        if node.host == host:
            name = broker_name(node)
            files["broker.properties"] = kafka.broker_properties(sites, site, node)
            files["format-broker.sh"] = kafka.format_script(sites, "broker.properties", name)
            files["kafka-broker.service"] = units.kafka_unit(sites, "broker", name)
            files["broker-client.properties"] = kafka.client_properties(sites, name)
            if sites.tls:
                files["acls.sh"] = kafka.acl_script(sites)
            folders[kafka.data_folder(sites, name)] = "kafka"
    for each in site.workers:
        if each.host == host:
            files["notary.toml"] = worker.notary_toml(sites, site, each)
            files["notary-worker.service"] = units.worker_unit(sites)
            folders[kafka.data_folder(sites, "worker")] = "notary"
    if "kafka" in folders.values():
        files["log4j2.xml"] = LOG4J2.read_text()
    files["sysusers.conf"] = units.sysusers(set(folders.values()))
    files["tmpfiles.conf"] = units.tmpfiles(folders)
    return files


def write(files: dict[str, str], directory: Path) -> list[str]:
    """Write the files that are missing or different; return their paths. Other files in the directory stay as they are."""
    changed = []
    for path, text in files.items():
        file = directory / path
        if file.is_file() and file.read_text() == text:
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        if file.suffix == ".sh":
            file.chmod(0o755)
        changed.append(path)
    return changed
