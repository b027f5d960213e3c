#!/usr/bin/env python3
"""Swap on servers, compared with the rates of the servers' own benchmarks in the same run.

    demo/remote_swap.py [--lab HIGHWATER-LAB] [--rounds N] [--threads N]

The servers run on this machine: redis-server by its socket, three of them as a cluster by TCP, and
nbdkit by its socket. Pages are 4 KiB, sealed, and checked. Medians of the rounds, in thousands of
pages a second; CPU time in microseconds a page.

    out       each thread writes its part of the set once, in sequence
    in        each thread reads its part back, in sequence
    random    reads of random pages, with the latency of a fault
    benchmark redis-benchmark -P 32, and fio's nbd engine with 32 in flight: 4 KiB each

Needs redis-server, nbdkit and fio with its nbd engine.
"""

import argparse
import contextlib
import json
import os
import resource
import socket
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
MEMORY, SET, SIZE = "128M", "512M", "1G"
PAGES = 100_000
# Seconds within which a server must start.
START_MAX = 20


def cpu_of(processes):
    """CPU seconds that processes have used."""
    ticks = 0
    for process in processes:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def cpu_of_clients():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def output(command):
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def await_that(what, is_so):
    began = time.monotonic()
    while not is_so():
        if time.monotonic() - began > START_MAX:
            raise SystemExit(f"remote_swap.py: {what}: not within {START_MAX} s")
        time.sleep(0.05)


class Server:
    """Server processes for swap, and the benchmarks that use these servers directly."""

    def __init__(self, name, swap, commands, benchmarks):
        self.name, self.swap, self.benchmarks = name, swap, benchmarks
        start = {"stdout": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
        self.processes = [subprocess.Popen(command, **start) for command in commands]

    def stop(self):
        for process in self.processes:
            process.kill()
            process.wait()


def redis_benchmark(place, what):
    def run():
        command = ["redis-benchmark", *place, "-P", "32", "-d", "4096", "-c", "32", "--csv"]
        rows = output([*command, "-n", str(4 * PAGES), "-r", str(PAGES), "-t", what])
        return float(rows.splitlines()[-1].split(",")[1].strip('"'))

    return run


def fio(path, what):
    def run():
        uri = f"nbd+unix:///?socket={path}"
        command = ["fio", "--name=x", "--ioengine=nbd", f"--uri={uri}", f"--rw={what}", "--bs=4k"]
        # The first pages mark the export as one for swap.
        part = ["--offset=64M", "--size=900M"]
        found = output([*command, *part, "--iodepth=32", "--output-format=json"])
        # fio prints lines about its connection first.
        return json.loads(found[found.index("{"):])["jobs"][0][what]["iops"]

    return run


def redis(work):
    path = f"{work}/redis.sock"
    options = ["--save", "", "--appendonly", "no", "--dir", work]
    server = ["redis-server", "--port", "0", "--unixsocket", path, *options]
    place = ["-s", path]
    benchmarks = [redis_benchmark(place, what) for what in ("set", "get")]
    made = Server("redis", f"redis+unix:{path}:{SIZE}", [server], benchmarks)
    await_that("redis-server", lambda: Path(path).exists())
    return made


def cluster(work):
    ports = [free_port() for _ in range(3)]
    places = [f"127.0.0.1:{port}" for port in ports]

    def server(port):
        options = ["--port", str(port), "--save", "", "--appendonly", "no", "--dir", work]
        of_cluster = ["--cluster-port", str(free_port()), "--cluster-config-file", f"{port}.conf"]
        return ["redis-server", *options, "--cluster-enabled", "yes", *of_cluster]

    place = ["-p", str(ports[0]), "--cluster"]
    benchmarks = [redis_benchmark(place, what) for what in ("set", "get")]
    servers = [server(port) for port in ports]
    made = Server("cluster of 3", f"redis:{','.join(places)}:{SIZE}", servers, benchmarks)
    ask = ["redis-cli", "-p", str(ports[0])]
    ping = [*ask, "ping"]
    await_that("redis-server", lambda: subprocess.run(ping, capture_output=True).returncode == 0)
    time.sleep(1)
    output(["redis-cli", "--cluster", "create", *places, "--cluster-yes"])
    await_that("a cluster", lambda: "cluster_state:ok" in output([*ask, "cluster", "info"]))
    return made


def nbd(work):
    path = f"{work}/nbd.sock"
    server = ["nbdkit", "-f", "-t", "1", "-U", path, "memory", SIZE]
    benchmarks = [fio(path, what) for what in ("write", "read")]
    made = Server("nbd", f"nbd+unix:{path}:{SIZE}", [server], benchmarks)
    await_that("nbdkit", lambda: Path(path).exists())
    return made


def lab(options, server, *arguments):
    command = [options.lab, "bench", *arguments, "--platform", "uffd", "--in-thread", "--json"]
    command += ["--memory", MEMORY, "--set", SET, "--threads", str(options.threads)]
    return json.loads(output([*command, "--swap", server.swap]))["figures"]


def measured(options, server):
    """The figures of a round: name to value."""
    found = {}

    def timed(name, run, pages_per_s):
        client, served, began = cpu_of_clients(), cpu_of(server.processes), time.monotonic()
        result = run()
        seconds = time.monotonic() - began
        found[name] = pages_per_s(result)
        found[f"{name}, client"] = (cpu_of_clients() - client) / seconds
        found[f"{name}, server"] = (cpu_of(server.processes) - served) / seconds
        return result

    def bench(*arguments):
        return lambda: lab(options, server, *arguments)

    def pages_in(figures):
        return figures["pages_in_per_s"]

    def pages_out(figures):
        return figures["swap_out_gb_per_s"] * 1e9 / 4096

    timed("out", bench("usemem", "--kind", "seq"), pages_out)
    timed("in", bench("usemem", "--kind", "swapin", "--pattern", "sequential"), pages_in)
    figures = timed("random", bench("pmbench", "--read", "100", "--time", "5"), pages_in)
    found["p50"], found["p99"] = figures["fault_p50_ns"] / 1000, figures["fault_p99_ns"] / 1000
    for name, run in zip(("benchmark out", "benchmark in"), server.benchmarks):
        timed(name, run, lambda rate: rate)
    return found


def show(server, rounds):
    median = {name: statistics.median(of[name] for of in rounds) for name in rounds[0]}
    pairs = (("out", "benchmark out"), ("in", "benchmark in"), ("random", "benchmark in"))
    for name, beside in pairs:
        ratio = median[name] / median[beside]
        cpus = " ".join(f"{median[f'{of}, {who}']:8.2f}" for of in (name, beside)
                        for who in ("client", "server"))
        print(f"{server.name:14} {name:8} {median[name] / 1000:9.1f} {median[beside] / 1000:9.1f} "
              f"{ratio:6.2f} {cpus}")
    print(f"{server.name:14} a fault  p50 {median['p50']:,.0f} us, p99 {median['p99']:,.0f} us",
          flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    built = HERE.parent / "target/release/highwater-lab"
    parser.add_argument("--lab", default=str(built), metavar="HIGHWATER-LAB")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--threads", type=int, default=32, metavar="N")
    options = parser.parse_args()
    print(f"{options.threads} threads, {SET} in {MEMORY}; thousands of pages/s; CPUs busy")
    print(f"{'':14} {'':8} {'Highwater':>9} {'benchmark':>9} {'ratio':>6} "
          f"{'client':>8} {'server':>8} {'client':>8} {'server':>8}")
    with tempfile.TemporaryDirectory() as work, contextlib.ExitStack() as stack:
        for start in (redis, cluster, nbd):
            server = start(work)
            stack.callback(server.stop)
            show(server, [measured(options, server) for _ in range(options.rounds)])
            server.stop()


if __name__ == "__main__":
    main()
