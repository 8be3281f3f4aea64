"""The operator's machine: it runs blocks of shell commands from a documentation page, on the hosts of `Installed`.

`ssh` enters a host's network and folders, and `scp` copies into its folders. Systemd and user accounts, which need a real host, are
emulated here. Everything else is the real program.
"""

import json
import os
import shlex
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from deploy.namespace import inside
from deploy.render import read_sites
from tests.deploy.installed import ENVIRONMENT, OPERATOR, ROOT, Installed, make_program

BLOCK_S_MAX = 600.0
_ANSWERED = ("systemctl", "systemd-sysusers", "systemd-tmpfiles", "scp", "chown")
_ASK = """\
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    connection.sendall(json.dumps([os.environ.get("HOST", ""), os.getcwd(), *sys.argv[2:]]).encode())
    connection.shutdown(socket.SHUT_WR)
    said = connection.makefile().read()
if said != "ok":
    sys.exit(f"{sys.argv[2]}: {said or 'no answer'}")
"""


class Operator:
    """A folder with the sites file, and a shell in it. `words` maps names in the page to those of this machine."""

    def __init__(self, installed: Installed, words: Mapping[str, str]) -> None:
        self.installed = installed
        self._words = words
        self._programs = installed.directory / "programs"
        self._socket = installed.directory / "asked"
        (installed.directory / "keys").symlink_to(installed.host(OPERATOR) / "config" / "keys")
        self._make_programs()

    def translate(self, text: str) -> str:
        """Returns the text with the hosts and folders of this machine."""
        for word, here in self._words.items():
            text = text.replace(word, here)
        return text

    def run(self, block: str, watch: Callable[[], None]) -> str:
        """Run a block to its end; returns its output. Fails if a command fails, if it takes too long, or if `watch` raises meanwhile.

        Call it in the main thread: a server's process ends with the thread that started it.
        """
        assert threading.current_thread() is threading.main_thread()
        made = self.installed
        environment = ENVIRONMENT | {"PATH": f"{self._programs}:{ENVIRONMENT['PATH']}", "PYTHONPATH": str(ROOT)}
        command = made.command(OPERATOR, ["timeout", str(BLOCK_S_MAX), "sh", "-euc", self.translate(block)])
        out = made.directory / "block.log"
        self._socket.unlink(missing_ok=True)
        with socketserver.UnixStreamServer(str(self._socket), self._handler()) as server, out.open("wb") as output:
            server.timeout = 0.1
            with inside(made.networks[OPERATOR]):
                process = subprocess.Popen(
                    command, env=environment, cwd=made.directory, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
                )
            try:
                while process.poll() is None:
                    server.handle_request()
                    watch()
            finally:
                process.kill()
                process.wait()
        said = out.read_text()
        assert process.returncode == 0, f"exit code {process.returncode} of\n{self.translate(block)}\n{said[-3000:]}"
        return said

    def edit(self, lines: str) -> None:
        """Replace lines of the sites file by these, by key, in the paragraph with the same first line as the block."""
        head, *changed = self.translate(lines).strip().splitlines()
        if head == "[[site]]":
            head += "\n" + changed.pop(0)
        file = self.installed.directory / "sites.toml"
        paragraphs = file.read_text().split("\n\n")
        (number,) = [number for number, paragraph in enumerate(paragraphs) if paragraph.strip().startswith(head)]
        of_paragraph = paragraphs[number].splitlines()
        for line in changed:
            (place,) = [at for at, found in enumerate(of_paragraph) if found.split(" = ")[0] == line.split(" = ")[0]]
            of_paragraph[place] = line
        paragraphs[number] = "\n".join(of_paragraph)
        file.write_text("\n\n".join(paragraphs))
        self.installed.sites = read_sites(file)

    def _make_programs(self) -> None:
        made = self.installed
        for name in _ANSWERED:
            make_program(self._programs / name, shlex.join([sys.executable, "-SEc", _ASK, str(self._socket), name]))
        make_program(self._programs / "python", sys.executable)
        make_program(self._programs / "runuser", 'shift 3; exec "$@";')  # -u USER --
        lines = ["#!/bin/sh", "host=${1#root@}; shift", "case $host in"]
        for host, network in made.networks.items():
            enter = shlex.join(["nsenter", f"--net={network}", *made.command(host, ["sh", "-c"])])
            lines.append(f'{shlex.quote(host)}) HOST=$host exec {enter} "$*" ;;')
        lines += ["esac", 'echo "ssh: nobody knows $host" >&2', "exit 255", ""]
        (self._programs / "ssh").write_text("\n".join(lines))
        (self._programs / "ssh").chmod(0o755)

    def _handler(self) -> type[socketserver.StreamRequestHandler]:
        operator = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                host, folder, program, *words = json.loads(self.rfile.read())
                try:
                    operator._answer(host, Path(folder), program, words)
                    said = "ok"
                except AssertionError as problem:
                    said = str(problem)
                self.wfile.write(said.encode())

        return Handler

    def _answer(self, host: str, folder: Path, program: str, words: list[str]) -> None:
        made = self.installed
        if program == "scp":
            *sources, target = [word for word in words if word != "-r"]
            there, _, path = target.removeprefix("root@").partition(":")
            copied = made.host(there) / Path(path).relative_to(made.directory)
            ran = subprocess.run(
                ["cp", "-R", *sources, f"{copied}{os.sep if path.endswith('/') else ''}"],
                cwd=folder, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert ran.returncode == 0, ran.stderr
        elif program == "systemd-tmpfiles":
            made.make_folders(host)
        elif program == "systemctl":
            self._systemctl(host, *[word for word in words if word != "--now"])
        else:  # there are no user accounts here
            assert program in ("systemd-sysusers", "chown"), program
            for word in words[1:]:
                assert word.startswith("-") or word.endswith(":") or (made.host(host) / Path(word).relative_to(made.directory)).exists(), (
                    word
                )

    def _systemctl(self, host: str, verb: str, *units: str) -> None:
        made = self.installed
        assert verb in ("link", "daemon-reload", "enable", "disable", "restart", "start", "stop"), verb
        for name in units if verb not in ("link", "daemon-reload") else ():
            running = [each for each in made.services if (each.name, each.host) == (f"{name}.service", host)]
            assert bool(running) == (verb not in ("enable", "start")), f"{verb} {name} on {host}, and {len(running)} of it run"
            for service in running:
                service.stop()
                made.services.remove(service)
                made.stopped.append(service)
            if verb not in ("disable", "stop"):
                made.start(host, f"{name}.service")
