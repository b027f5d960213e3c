# Runs a command from a shell with job control on a terminal of its own: the keyboard's signals
# reach the program once, it can be stopped and continued, and it reads from the terminal.
# Arguments: the command line that runs counts.py.
import os
import pty
import select
import shlex
import sys
import time

DEADLINE = time.monotonic() + 60


class Terminal:
    def __init__(self, arguments):
        self.seen = ""
        pid, self.fd = pty.fork()
        if pid == 0:
            os.environ["PS1"] = "prompt> "
            os.execvp(arguments[0], arguments)

    def expect(self, text):
        while text not in self.seen:
            left = DEADLINE - time.monotonic()
            ready = select.select([self.fd], [], [], max(left, 0))[0]
            if not ready:
                sys.exit(f"no {text!r} came after: {self.seen!r}")
            self.seen += os.read(self.fd, 4096).decode()
        before, self.seen = self.seen.split(text, 1)
        return before

    def type(self, text):
        os.write(self.fd, text.encode())


def is_stopped():
    return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] == "T"


# A signal that comes just before Python reads is handled only after it has read.
def is_reading():
    call = open(f"/proc/{pid}/syscall").read().split()
    return len(call) > 1 and call[1] == "0x0"


def wait_until(condition):
    while not condition():
        if time.monotonic() > DEADLINE:
            sys.exit(f"never: {condition.__name__}")
        time.sleep(0.001)


terminal = Terminal(["bash", "--norc", "--noprofile", "-i"])
terminal.expect("prompt> ")
terminal.type(shlex.join(sys.argv[1:]) + "\n")
terminal.expect("ready ")
pid = int(terminal.expect("\n"))
wait_until(is_reading)
terminal.type("\x03")
terminal.expect("INT 1")
terminal.type("a line\n")
terminal.expect("read a line")
terminal.type("\x1a")
terminal.expect("Stopped")
terminal.expect("prompt> ")
# The shell waits for the first process of the job only. Until this one runs and is stopped, too, it
# would read what is typed, as on any terminal.
wait_until(is_stopped)
terminal.type("fg\n")
terminal.type("another\n")
terminal.expect("read another")
wait_until(is_reading)
terminal.type("\x03")
terminal.expect("INT 2")
terminal.type("end\n")
terminal.expect("done INT 2")
terminal.expect("prompt> ")
terminal.type("exit\n")
print("all as on any terminal")
