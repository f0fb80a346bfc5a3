"""``weft serve``: the pages, on this machine, for this machine."""

from __future__ import annotations

import os
import signal
import socket
from importlib.util import find_spec
from pathlib import Path

import click

from weft.commands.command_line import command
from weft.commands.options import Options, option
from weft.errors import BadInput, MissingExtra

HOST = "127.0.0.1"
PORT = 8787


class ServeOptions(Options):
    """Where the pages are, and what is kept."""

    port: int = option(PORT, "Port of 127.0.0.1; 0 takes a free one.", metavar="N", least=0, most=65535)
    state: str | None = option(
        None, "Keep pasted texts and studies there (default: weft in XDG_STATE_HOME or ~/.local/state).", metavar="DIR"
    )
    open: bool = option(False, "Open the page in a browser.")


@command(options=ServeOptions)
def serve_command(options: ServeOptions) -> None:
    """Plan, compare and explore on pages in your browser.

    The pages are for this machine alone: the server listens on 127.0.0.1, loads nothing from elsewhere, and reads no
    file that a browser names. Needs the extra page: pip install 'weft[page]'.
    """
    if any(find_spec(name) is None for name in ("starlette", "jinja2", "uvicorn", "altair", "vl_convert")):
        raise MissingExtra("weft serve", "page")
    import uvicorn

    from weft.studies.runners import cores
    from weft.web.app import application
    from weft.web.work import Pool

    listening = _listen(options.port)
    port = listening.getsockname()[1]
    names = [f"{HOST}:{port}", f"localhost:{port}"]
    address = f"http://{names[0]}/"
    folder = _state(options.state)
    pool = Pool(workers=max(2, min(cores(), 8)))
    try:
        app = application(pool, folder, names)
        configuration = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, ws="none")
        server = uvicorn.Server(configuration)
        # From here on Ctrl+C is a wish to end: raised as an exception, it could come where nothing passes it on.
        signal.signal(signal.SIGINT, server.handle_exit)
        click.echo(f"Weft is at {address} (Ctrl+C ends it)")
        if options.open:
            import webbrowser

            webbrowser.open(address)
        server.run(sockets=[listening])
    finally:  # Ctrl+C may come before the application lives, and the pool's processes would keep this one
        pool.close()


def _listen(port: int) -> socket.socket:
    """A socket of this machine alone."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
        listening.listen(128)
    except OSError as error:
        listening.close()
        problem = f"port {port} cannot be used: {error.strerror}"
        raise BadInput(problem, where="--port", remedy="give another one, or 0 for a free one") from None
    return listening


def _state(given: str | None) -> Path:
    """The folder of what is kept."""
    home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    folder = Path(given) if given is not None else Path(home).expanduser() / "weft"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot be made: {error.strerror}", where=f"--state {folder}") from None
    return folder
