"""Locust's entry file: `locust -f loadtest/locustfile.py --headless --host URL,URL`. `loadtest.openloop` describes the load."""

import os
import sys
from argparse import ArgumentParser
from collections.abc import Mapping
from functools import partial
from typing import Any

# Locust puts the working directory in front of all installed packages, and anybody may have written it.
sys.path.remove(os.getcwd())

import gevent
from locust import LoadTestShape, User, constant, events, task
from locust.env import Environment
from locust.runners import STATE_MISSING, MasterRunner, WorkerRunner

from loadtest.openloop.plan import add_arguments
from loadtest.openloop.run import MESSAGE, Coordinator, Member

coordinator: Coordinator | None = None
member: Member | None = None
clients: set[str] = set()
"""The processes of the run, by Locust's names for them."""


class NotaryUser(User):
    """One user of the load. The process that sends has one connection to each URL for it."""

    wait_time = constant(1)

    @task
    def wait_for_the_end(self) -> None:
        """Return when the run is over."""
        if member is not None:
            member.work()


class ScheduleShape(LoadTestShape):
    """Keeps the number of users constant, since the schedule sets the rate. Ends the run when every submission is accounted for."""

    use_common_options = True

    def tick(self) -> tuple[int, float] | None:
        """Called by Locust once a second; returns None to end the run."""
        if coordinator is None:
            return None
        if isinstance(self.runner, MasterRunner):
            there = {client.id for client in self.runner.clients.all if client.state != STATE_MISSING}
            for client in clients - there:
                coordinator.lost(client)
        return coordinator.tick()


@events.init_command_line_parser.add_listener
def _options(parser: ArgumentParser) -> None:
    add_arguments(parser)


@events.init.add_listener
def _wire(environment: Environment, runner: Any, **_: Any) -> None:
    """Connect coordinator and member: directly in one process, or by Locust's messages."""
    global coordinator, member
    if environment.parsed_options is not None and environment.parsed_options.class_picker:
        sys.exit("--class-picker can pick another shape, or none: then nothing would end the run. There is one user and one shape here")
    if isinstance(runner, WorkerRunner):
        member = own = Member(environment, lambda message: runner.send_message(MESSAGE, dict(message)))
        runner.register_message(MESSAGE, lambda msg, **_: own.handle(msg.data))
        environment.events.test_stop.add_listener(_end)
        return
    coordinator = here = Coordinator(environment)
    if isinstance(runner, MasterRunner):
        runner.register_message(MESSAGE, lambda msg, **_: here.handle(msg.data))
    else:
        # Do this after the call: the coordinator may answer with "go" to the same member.
        member = Member(environment, lambda message: gevent.spawn(here.handle, message))
    environment.events.test_start.add_listener(_begin)
    environment.events.spawning_complete.add_listener(_spawned)
    environment.events.test_stop.add_listener(_end)
    environment.events.quitting.add_listener(_exit_code)
    environment.events.quit.add_listener(_repeat_figure)


def _begin(environment: Environment, **_: Any) -> None:
    runner = environment.runner
    if coordinator is None:
        return
    if isinstance(runner, MasterRunner):
        clients.clear()
        clients.update([client.id for client in runner.clients.all if client.state != STATE_MISSING])
        coordinator.begin([partial(_send, runner, client) for client in sorted(clients)])
    elif member is not None:
        coordinator.begin([member.handle])


def _send(runner: MasterRunner, client: str, message: Mapping[str, Any]) -> None:
    runner.send_message(MESSAGE, dict(message), client)


def _spawned(**_: Any) -> None:
    if coordinator is not None:
        coordinator.spawned()


def _end(**_: Any) -> None:
    if coordinator is not None:
        coordinator.end()
    if member is not None:
        member.drop()


def _exit_code(environment: Environment, **_: Any) -> None:
    """Set the exit code: a run without a figure, or without a start, is no success."""
    options = environment.parsed_options
    nothing = 1 if options is not None and options.headless else 0
    found = None if coordinator is None else coordinator.exit_code
    environment.process_exit_code = nothing if found is None else found


def _repeat_figure(**_: Any) -> None:
    """Print the figure after Locust's tables, whose rates include the warm-up: people quote the last lines."""
    if coordinator is not None and coordinator.lines:
        print("\n".join(["The rates in Locust's tables include the warm-up. These do not:", *coordinator.lines]), flush=True)
