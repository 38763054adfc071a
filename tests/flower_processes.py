"""Flower's own processes on this machine: a SuperLink, SuperNodes, and ``flwr run``."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import psutil

ROOT = Path(__file__).parents[1]
OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray then listens on loopback alone
    "NO_COLOR": "1",
}
_SECONDS_TO_START = 120.0
_SECONDS_TO_STOP = 10.0


def environment(home: Path) -> dict[str, str]:
    """Return that of Flower's commands: they find each other, whichever Python runs the tests."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, **OFFLINE, "FLWR_HOME": str(home), "PATH": path}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@dataclass
class Flower:
    """Processes that were started, each the leader of a group of its own.

    Attributes:
        folder: For their homes and logs.
        ray: Ray's, with a short path, since its sockets lie there; where no other Ray is found.
        port: The SuperLink's.
    """

    folder: Path
    ray: Path
    port: int = field(default_factory=free_port)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, command: str, *arguments: str) -> None:
        home = self.folder / name
        home.mkdir()
        tool = Path(sys.executable).with_name(command)
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [str(tool), *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self.folder,
                env={**environment(home), "RAY_TMPDIR": str(self.ray)},
            )

    def superlink(self, *arguments: str) -> None:
        self.start(
            "superlink",
            "flower-superlink",
            *("--insecure", "--host", "127.0.0.1", "--port", str(self.port)),
            *("--disable-runtime-dependency-installation", *arguments),
        )
        until = time.monotonic() + _SECONDS_TO_START
        while True:
            try:
                return httpx.get(f"http://127.0.0.1:{self.port}/health").raise_for_status()
            except httpx.HTTPError:
                assert time.monotonic() < until, self.log("superlink")
                time.sleep(0.2)

    def supernode(self, name: str, data: Path) -> None:
        self.start(
            name,
            "flower-supernode",
            *("--insecure", "--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port())),
            *("--node-config", f'data="{data}"'),
        )

    def run(self, run_config: str, *arguments: str) -> None:
        """Start ``flwr run`` on this repository; its process ends with the run."""
        home = self.folder / "user"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(
            '[superlink]\ndefault = "here"\n'
            f'[superlink.here]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        with (self.folder / "run.log").open("wb") as log:
            self.processes["run"] = subprocess.Popen(
                [
                    str(Path(sys.executable).with_name("flwr")),
                    *("run", str(ROOT), "--stream", "--run-config", run_config),
                    *arguments,
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment(home),
            )

    def wait(self, path: Path, text: str, seconds: float = 400.0) -> None:
        """Wait until a file holds a text; fail with the logs if the run ends before."""
        until = time.monotonic() + seconds
        while not (path.exists() and text in path.read_text()):
            ended = self.processes["run"].poll() is not None
            if ended and path.exists() and text in path.read_text():
                return
            assert not ended, self.logs()
            assert time.monotonic() < until, self.logs()
            time.sleep(0.2)

    def kill(self, name: str) -> None:
        """Kill a process and all that it started, at once, as a machine that loses its power."""
        process = self.processes.pop(name)
        for one in _family(process):
            one.kill()
        process.wait()

    def stop(self) -> None:
        """End everything that was started: politely, SuperNodes first, then for sure."""
        started = [one for process in self.processes.values() for one in _family(process)]
        for process in reversed(self.processes.values()):
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_SECONDS_TO_STOP)
        for one in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        for process in self.processes.values():
            process.wait()

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def logs(self) -> str:
        return "\n".join(
            f"== {path.name}\n{path.read_text(errors='replace')[-3000:]}"
            for path in sorted(self.folder.glob("*.log"))
        )


def _family(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """A process and all that it has started; some of these lead sessions of their own."""
    try:
        first = psutil.Process(process.pid)
        return [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


@contextmanager
def flower(folder: Path) -> Iterator[Flower]:
    """Whatever is started in the block is gone after it."""
    with TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as ray:
        processes = Flower(folder, Path(ray))
        try:
            yield processes
        finally:
            processes.stop()
