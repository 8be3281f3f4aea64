"""The command line: `python -P -m deploy.pki FOLDER init|issue|sites|renew|revoke|list`.

Exits with 0 on success and 2 on failure; stderr has the reason.
"""

import argparse
import sys
from pathlib import Path

from deploy.pki.authority import DAYS, Authority, PkiError
from deploy.render.sites import Certificate, SitesError, read_sites

DONE, COULD_NOT = 0, 2


def main(arguments: list[str] | None = None) -> int:
    """Run the command that `arguments` name, by default the process's own; return the exit code."""
    chosen = _parser().parse_args(arguments)
    try:
        _do(chosen)
    except (PkiError, SitesError, OSError) as problem:
        print(f"deploy.pki: {problem}", file=sys.stderr)
        return COULD_NOT
    return DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -P -m deploy.pki", description="A certificate authority in a folder.")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    init = commands.add_parser("init", help="make the authority")
    init.add_argument("--name", default="Notary CA", help="the name in its certificate (default: Notary CA)")
    issue = commands.add_parser("issue", help="make a key and a certificate")
    issue.add_argument("name", metavar="NAME", help="the common name, by which Kafka knows it: User:NAME")
    issue.add_argument("--server", action="store_true", help="it is a server too; needs a --host")
    issue.add_argument("--host", action="append", default=[], metavar="HOST", help="an address or DNS name by which it is reached")
    issue.add_argument(
        "--crl", default="", metavar="URL", help="where the revocation list is looked for, e.g. file:///etc/notary/tls/crl.pem"
    )
    sites = commands.add_parser("sites", help="make what a sites file names and the folder lacks; makes the authority too")
    sites.add_argument("file", type=Path, metavar="SITES.toml")
    renew = commands.add_parser("renew", help="make a new key and certificate with the same names")
    renew.add_argument("name", metavar="NAME")
    for command in (issue, sites, renew):
        command.add_argument("--days", type=int, default=DAYS, help=f"how long they are good for (default: {DAYS})")
    revoke = commands.add_parser("revoke", help="put the certificates of a name on the revocation list")
    revoke.add_argument("name", metavar="NAME")
    revoke.add_argument("--former", action="store_true", help="all but the present one: after a renewal")
    commands.add_parser("list", help="show the present certificates, and until when they are good")
    return parser


def _do(chosen: argparse.Namespace) -> None:
    if chosen.command == "init":
        Authority.create(chosen.folder, chosen.name)
        return
    if chosen.command == "sites":
        wanted = read_sites(chosen.file).certificates
        for name in issue_all(chosen.folder, wanted, chosen.days):
            print(f"issued {name}")
        return
    authority = Authority.open(chosen.folder)
    if chosen.command == "issue":
        if (chosen.folder / chosen.name / "cert.pem").exists():
            raise PkiError(f"{chosen.name} has a certificate already: `renew` replaces it")
        authority.issue(chosen.name, hosts=chosen.host, server=chosen.server, crl_url=chosen.crl, days=chosen.days)
    elif chosen.command == "renew":
        authority.renew(chosen.name, chosen.days)
    elif chosen.command == "revoke":
        count = authority.revoke(chosen.name, former=chosen.former)
        if not count:
            print(
                f"{chosen.name} has no {'former ' if chosen.former else ''}certificate that is not on {chosen.folder / 'crl.pem'} already"
            )
            return
        print(f"{count} certificates of {chosen.name} are new on {chosen.folder / 'crl.pem'}: copy it to all brokers and controllers")
    else:
        revoked = {entry.serial_number for entry in authority.revoked()}
        for file in sorted(chosen.folder.glob("*/cert.pem")):
            certificate = authority.certificate(file.parent.name)
            state = "revoked" if certificate.serial_number in revoked else f"until {certificate.not_valid_after_utc:%Y-%m-%d}"
            print(f"{file.parent.name:<24} {state}")


def issue_all(folder: Path, wanted: list[Certificate], days: int = DAYS) -> list[str]:
    """Make the certificates that the folder lacks, and its authority if it has none; return the names of the new certificates.

    Raises `PkiError` if an existing certificate has other hosts than it should have.
    """
    authority = Authority.open(folder) if (folder / "ca.pem").exists() else Authority.create(folder)
    new = []
    for certificate in wanted:
        if (folder / certificate.name / "cert.pem").exists():
            authority.check_hosts(certificate.name, certificate.hosts)
            continue
        authority.issue(certificate.name, hosts=certificate.hosts, server=certificate.server, crl_url=certificate.crl_url, days=days)
        new.append(certificate.name)
    return new


if __name__ == "__main__":
    sys.exit(main())
