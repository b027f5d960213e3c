"""Servers, with a client that compares or hashes their answers."""

from row import MIB, Row, Skip

DRIVER = "{suite_python} {sources}/sources/servers.py"


def reachable(inputs):
    """A server that has dropped root needs access to its files."""
    for directory in inputs.resolve().parents:
        if not directory.stat().st_mode & 0o001:
            raise Skip(f"users other than root cannot come through {directory}")


SERVERS = [
    Row(
        name="nginx",
        command=f"{DRIVER} nginx",
        needs=("nginx",),
        apt=("nginx-light",),
        prepare=reachable,
        budget=12 * MIB,
        limit=60,
        root=True,
    ),
    Row(
        name="postgresql",
        command=f"{DRIVER} postgres",
        needs=("/usr/lib/postgresql/15/bin/pgbench", "setpriv"),
        apt=("postgresql-15", "postgresql-contrib", "util-linux"),
        prepare=reachable,
        budget=24 * MIB,
        limit=60,
        root=True,
    ),
    Row(
        name="memcached",
        command=f"{DRIVER} memcached",
        needs=("memcached",),
        apt=("memcached",),
        budget=40 * MIB,
        limit=60,
        root=True,
    ),
    Row(
        name="mariadb",
        command=f"{DRIVER} mariadb",
        needs=("mariadbd", "mariadb-install-db"),
        apt=("mariadb-server",),
        budget=64 * MIB,
        limit=60,
        root=True,
    ),
]
