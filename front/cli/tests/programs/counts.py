# Prints the number of signals received, at each signal, and every line it reads, until "end".
import os
import signal
import sys

counts = {}


def say(text):
    os.write(1, (text + "\n").encode())


def got(number, _):
    name = signal.Signals(number).name.removeprefix("SIG")
    counts[name] = counts.get(name, 0) + 1
    say(f"{name} {counts[name]}")


for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, got)
say(f"ready {os.getpid()}")
for line in sys.stdin:
    if line == "end\n":
        break
    say("read " + line.strip())
said = [f"{name} {count}" for name, count in counts.items()]
say(" ".join(["done", *said]))
