"""stress-ng: stressors of memory, forks, signals and threads that check their results."""

from row import MIB, Row

# Seconds per stressor.
SECONDS = 3

MEMORY = """
    atomic bad-altstack bigheap brk bsearch context env heapsort hsearch judy list lsearch madvise
    malloc matrix mcontend membarrier memcpy memfd memrate memthrash mergesort mincore misaligned
    mlock mmap mmapaddr mmapfixed mmapmany mprotect mremap msync numa pagemove pipe pipeherd
    qsort radixsort remap rmap shellsort shm skiplist sparsematrix stack stackmmap str
    stream tlb-shootdown tree tsearch userfaultfd vm vm-addr vm-rw vm-segv vm-splice wcs zero zlib
""".split()
FORKS = """
    clone close daemon exec exit-group fork forkheavy ptrace seccomp session spawn unshare
    vfork wait zombie
""".split()
SIGNALS = """
    itimer kill sigabrt sigchld sigfd sigfpe sigio signal signest sigpending sigpipe sigq sigrt
    sigsegv sigsuspend sigtrap timer
""".split()
THREADS = "affinity cyclic dup futex mutex nice poll pthread race-sched sem switch".split()

# Sizes of stressors that would take too much memory or time.
BOUNDS = {
    "bigheap": "--bigheap-ops 20000",
    "brk": "--brk-ops 300000",
    "malloc": "--malloc-bytes 64M",
    "mmap": "--mmap-bytes 64M",
    "pthread": "--pthread-max 64",
    "zombie": "--zombie-max 200",
    "memfd": "--memfd-bytes 32M",
    "memrate": "--memrate-bytes 64M",
    "mremap": "--mremap-bytes 32M",
    "msync": "--msync-bytes 32M",
    "qsort": "--qsort-size 262144",
    "shm": "--shm-bytes 8M",
    "stream": "--stream-l3-size 32M",
    "vm": "--vm-bytes 64M",
    "vm-rw": "--vm-rw-bytes 32M",
}


# Known differences.
KNOWN = {
    "userfaultfd": "a program cannot register paged memory with a userfaultfd of its own",
}


def stressor(name):
    bounds = BOUNDS.get(name, "")
    command = f"stress-ng --{name} 2 {bounds} --timeout {SECONDS} --verify --seed 1 --quiet"
    return Row(
        name=f"stress-ng-{name}",
        command=f"{command} && echo verified",
        needs=("stress-ng",),
        apt=("stress-ng",),
        budget=24 * MIB,
        known={"exit|output": KNOWN[name]} if name in KNOWN else {},
        limit=15,
    )


STRESS = [stressor(name) for name in [*MEMORY, *FORKS, *SIGNALS, *THREADS]]
