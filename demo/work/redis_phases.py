"""Fills a redis-server, and asks it for random keys, by scripts that the server runs.

A value is a text made of its key, so that every answer is checked in the server. Random numbers
come from a generator in the script: the same keys each time.
"""

import subprocess
import time

from phase import phase

KEYS = 1_000_000
ASKED = 200_000
# In a call of a script.
STEP = 20_000
START_SECONDS = 60

VALUE = "local function value(n) return string.rep(string.format('%08d', n), 24) end "
FILL = VALUE + (
    "for n = tonumber(ARGV[1]), ARGV[1] + ARGV[2] - 1 do redis.call('set', 'key:' .. n, value(n)) "
    "end return redis.call('dbsize')"
)
READ = VALUE + (
    "local n, sum = tonumber(ARGV[1]), 0 "
    "for i = 1, tonumber(ARGV[2]) do "
    "n = (n * 69069 + 12345) % 4294967296 "
    "local key = math.floor(n / 256) % tonumber(ARGV[3]) "
    "local found = redis.call('get', 'key:' .. key) "
    "if found ~= value(key) then return redis.error_reply('WRONG value of key ' .. key) end "
    "sum = (sum * 31 + key) % 1000003 end return sum"
)


def ask(socket, *command):
    """The answer of the server; None if it does not serve."""
    line = ["redis-cli", "-s", socket, *map(str, command)]
    done = subprocess.run(line, capture_output=True, text=True)
    answer = done.stdout.strip()
    if done.returncode != 0 or not answer or "onnection" in answer + done.stderr:
        return None
    if "WRONG" in answer or "ERR" in answer:
        raise SystemExit(f"redis: {answer}")
    return answer


def call(socket, script, *arguments):
    answer = ask(socket, "eval", script, 0, *arguments)
    if answer is None:
        raise SystemExit("redis-server has ended")
    return answer


def fill(socket):
    for start in range(0, KEYS, STEP):
        made = call(socket, FILL, start, STEP)
    return made


def read(socket):
    return "".join(call(socket, READ, seed, STEP, KEYS) for seed in range(ASKED // STEP))


def main(socket):
    """To be run beside the server, without a limit."""
    end = time.monotonic() + START_SECONDS
    while ask(socket, "ping") != "PONG":
        if time.monotonic() > end:
            raise SystemExit("redis-server does not answer")
        time.sleep(0.02)
    phase(f"{KEYS:,} keys set", lambda: fill(socket))
    phase(f"{ASKED:,} random keys read", lambda: read(socket))
    ask(socket, "shutdown", "nosave")


if __name__ == "__main__":
    import sys

    main(sys.argv[1])
