"""Starts a server, works with it, prints digests of what it answers, stops it.

    python3 servers.py {nginx|postgres|memcached|mariadb}

Runs in an empty directory; sockets are in $TMPDIR, ports are free ones of the loopback device.
"""

import contextlib
import gzip
import hashlib
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

START_SECONDS = 120
POSTGRES = "/usr/lib/postgresql/15/bin"
HERE = Path.cwd()
SOCKETS = Path(os.environ["TMPDIR"])


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextlib.contextmanager
def server(command, is_up, stop=signal.SIGTERM):
    """Runs a server in the foreground until the block ends; its status is printed."""
    with open(HERE / "server.log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    deadline = time.monotonic() + START_SECONDS
    while not is_up():
        if process.poll() is not None or time.monotonic() > deadline:
            sys.stderr.write((HERE / "server.log").read_text(errors="replace")[-2000:])
            sys.exit(f"{command[0]} does not start, status {process.returncode}")
        time.sleep(0.05)
    yield
    process.send_signal(stop)
    print("server ends with", process.wait())


def listens(port):
    def is_up():
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    return is_up


NGINX = """
daemon off;
user nobody nogroup;
worker_processes 2;
error_log {here}/error.log;
pid {here}/nginx.pid;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {here}/body;
    proxy_temp_path {here}/proxy;
    fastcgi_temp_path {here}/fastcgi;
    uwsgi_temp_path {here}/uwsgi;
    scgi_temp_path {here}/scgi;
    sendfile off;
    output_buffers 32 1m;
    gzip on;
    gzip_types text/plain;
    gzip_buffers 256 64k;
    types {{ text/plain txt; }}
    server {{ listen 127.0.0.1:{port}; root {here}/files; }}
}}
"""


def nginx():
    files = HERE / "files"
    files.mkdir()
    for number in range(20):
        source = random.Random(number)
        words = [f"{source.randrange(5000)} word" for _ in range(60000)]
        (files / f"{number}.txt").write_text("\n".join(words))
    port = free_port()
    (HERE / "nginx.conf").write_text(NGINX.format(here=HERE, port=port))

    def fetch(number):
        address = f"http://127.0.0.1:{port}/{number % 20}.txt"
        headers = {"Accept-Encoding": "gzip"} if number % 3 else {}
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers)) as answer:
            body = answer.read()
        body = gzip.decompress(body) if number % 3 else body
        return body == (files / f"{number % 20}.txt").read_bytes()

    command = ["nginx", "-p", str(HERE), "-c", str(HERE / "nginx.conf")]
    with server(command, listens(port), signal.SIGQUIT):
        with ThreadPoolExecutor(8) as pool:
            print("right answers:", sum(pool.map(fetch, range(200))))


QUERIES = """
select count(*), sum(abalance), sum(aid) from pgbench_accounts;
create table numbers as select i, md5(i::text) as text, i::bigint * 7919 % 100003 as key
    from generate_series(1, 300000) i;
select count(*), sum(i), min(text) from (select * from numbers order by text) s;
select count(*), sum(n) from (select key, count(*) n, max(text) from numbers group by key) s;
select count(*), sum(a.i), max(b.text) from numbers a join numbers b using (key);
select md5(string_agg(text, ',' order by i)) from numbers;
create index on numbers (text);
select i from numbers where text = md5('4711');
"""


def postgres():
    owner = pwd.getpwnam("postgres")
    data = HERE / "data"
    data.mkdir(mode=0o700)
    shutil.chown(data, "postgres", "postgres")
    drop = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    environment = dict(os.environ, HOME=owner.pw_dir)
    made = [*drop, f"{POSTGRES}/initdb", "-D", str(data), "-A", "trust", "-N"]
    subprocess.run(made, stdout=subprocess.DEVNULL, check=True, env=environment)
    base = ["-h", str(SOCKETS), "-U", "postgres"]
    settings = "listen_addresses= shared_buffers=16MB work_mem=64MB fsync=off jit=off".split()
    command = [*drop, f"{POSTGRES}/postgres", "-D", str(data), "-k", str(SOCKETS)]
    for setting in [*settings, "max_parallel_workers_per_gather=0"]:
        command += ["-c", setting]

    def is_up():
        ask = [f"{POSTGRES}/pg_isready", "-q", *base]
        return subprocess.run(ask, check=False).returncode == 0

    def run(*words, text=None):
        found = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
        print(Path(words[0]).name, found.returncode, found.stdout.strip())
        if found.returncode:
            sys.stderr.write(found.stderr)

    with server(command, is_up, signal.SIGINT):
        run(f"{POSTGRES}/pgbench", *base, "-i", "-q", "-s", "3", "postgres")
        run(f"{POSTGRES}/psql", *base, "-qAt", "-v", "ON_ERROR_STOP=1", "postgres", text=QUERIES)
        count = ["-c", "4", "-j", "2", "-t", "100", "--random-seed=1"]
        bench = [f"{POSTGRES}/pgbench", *base, *count, "postgres"]
        found = subprocess.run(bench, capture_output=True, text=True, check=False)
        print([line for line in found.stdout.splitlines() if "processed" in line])


def memcached():
    port = free_port()
    command = ["memcached", "-u", "nobody", "-l", "127.0.0.1", "-p", str(port), "-m", "200"]
    with server(command, listens(port)):
        with socket.create_connection(("127.0.0.1", port)) as link, link.makefile("rwb") as file:
            source = random.Random(1)
            for number in range(120000):
                value = source.randbytes(source.randrange(100, 2000)).hex().encode()[:1500]
                file.write(b"set k%d 0 0 %d noreply\r\n%s\r\n" % (number, len(value), value))
            file.flush()
            digest, kept = hashlib.sha256(), 0
            for number in range(0, 120000, 3):
                file.write(b"get k%d\r\n" % number)
                file.flush()
                head = file.readline()
                if head.startswith(b"VALUE"):
                    digest.update(file.read(int(head.split()[3]) + 2))
                    kept += 1
                    file.readline()
            print("kept", kept, digest.hexdigest())


TABLES = """
create table numbers (i int primary key, text char(32), k int) engine=innodb;
insert into numbers select seq, md5(seq), seq * 7919 % 100003 from seq_1_to_200000;
select count(*), sum(i), min(text) from (select * from numbers order by text limit 150000) s;
select count(*), sum(n) from (select k, count(*) n, max(text) from numbers group by k) s;
alter table numbers add index (k);
select count(*), sum(a.i), max(b.text) from numbers a join numbers b using (k);
create index t on numbers (text);
select i from numbers where text = md5('4711');
checksum table numbers;
"""


def mariadb():
    data, link = HERE / "data", SOCKETS / "m.sock"
    plain = [f"--datadir={data}", "--auth-root-authentication-method=normal"]
    made = ["mariadb-install-db", "--no-defaults", "--user=root", "--skip-test-db", *plain]
    subprocess.run(made, stdout=subprocess.DEVNULL, check=True)
    options = [f"--datadir={data}", f"--socket={link}", "--skip-networking", "--user=root"]
    command = ["mariadbd", "--no-defaults", "--innodb-buffer-pool-size=192M", *options]

    def is_up():
        ask = ["mariadb-admin", "--no-defaults", "-u", "root", "-S", str(link), "ping"]
        quiet = subprocess.DEVNULL
        return subprocess.run(ask, stdout=quiet, stderr=quiet, check=False).returncode == 0

    with server(command, is_up):
        client = ["mariadb", "--no-defaults", "-u", "root", "-S", str(link)]
        for text in ("create database d;", "use d;\nset max_heap_table_size=1<<28;" + TABLES):
            done = subprocess.run(client, input=text, capture_output=True, text=True, check=False)
            print(done.returncode, done.stdout, done.stderr)


if __name__ == "__main__":
    SERVERS = {"nginx": nginx, "postgres": postgres, "memcached": memcached, "mariadb": mariadb}
    SERVERS[sys.argv[1]]()
