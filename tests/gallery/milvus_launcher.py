"""Runs a Milvus server, and leads a Unix socket to it. Ends with its standard input.

python milvus_launcher.py FOLDER
"""

import asyncio
import os
import signal
import subprocess
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path

import milvus

# A cluster looks after itself every second or so; one test would wait for that several times.
QUICKER = {
    "level: info": "level: error",
    "timeTickInterval: 200": "timeTickInterval: 20",
    "checkInterval: 1000": "checkChannelInterval: 50\n  checkSegmentInterval: 50",
    "distPullInterval: 500": "distPullInterval: 50",
    "ttl: 30": "ttl: 5",
}


def configured(folder: Path) -> milvus.MilvusServerConfig:
    """Write the configuration, with free ports, and unpack the program."""
    config = milvus.MilvusServerConfig(data_dir=str(folder))
    config.resolve()
    config_file = folder / "configs/milvus.yaml"
    text = config_file.read_text(encoding="utf-8")
    for usual, here in QUICKER.items():
        assert usual in text, usual
        text = text.replace(usual, here)
    config_file.write_text(text, encoding="utf-8")
    milvus._initialize_data_files(str(folder))
    return config


def started(folder: Path, metrics_port: int) -> subprocess.Popen[bytes]:
    with (folder / "logs/output.log").open("ab") as log:
        return subprocess.Popen(
            [str(folder / "bin/milvus"), "run", "standalone"],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=os.environ
            | {
                "DEPLOY_MODE": "STANDALONE",
                "METRICS_PORT": str(metrics_port),
                "MILVUS_RUN_DIR": str(folder / "run"),
                "LD_LIBRARY_PATH": str(folder / "bin"),
            },
        )


async def healthy(process: subprocess.Popen[bytes], metrics_port: int) -> None:
    address = f"http://127.0.0.1:{metrics_port}/healthz"
    while process.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:
                if b"OK" in answer.read():
                    return
        except OSError:
            pass
        await asyncio.sleep(0.1)
    sys.exit(f"Milvus ended with {process.returncode}; see logs/output.log")


async def relay(path: Path, port: int) -> asyncio.Server:
    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while part := await reader.read(1 << 20):
                writer.write(part)
                await writer.drain()
        except (OSError, asyncio.CancelledError):
            pass
        writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            theirs = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        with suppress(asyncio.CancelledError):
            await asyncio.gather(forward(reader, theirs[1]), forward(theirs[0], writer))

    path.unlink(missing_ok=True)
    return await asyncio.start_unix_server(connect, path)


async def main(folder: Path) -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=False)
    config = configured(folder)
    metrics_port, held = config.resolve_port(9091)
    held.close()
    process = started(folder, metrics_port)
    end = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, end.set)
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    try:
        await healthy(process, metrics_port)
        server = await relay(folder / "socket", int(config.get("proxy_port")))
        print("ready", flush=True)
        waits = [asyncio.create_task(reader.read()), asyncio.create_task(end.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        server.close()
        (folder / "socket").unlink()
    finally:
        process.terminate()
        try:
            process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            process.kill()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
