"""The tables of real_work.py."""

WIDTH = 15
# Our columns, and the kernel's beside which each is.
RATIOS = {"ours zram": "kernel zram", "ours disk": "kernel disk", "ours default": "kernel disk"}


def show(everything, titles):
    """Seconds of each phase, then the other figures of each run."""
    show_seconds(everything, titles)
    print()
    show_figures(everything)
    show_missing(everything)


def show_seconds(everything, titles):
    ratios = [title for title in RATIOS if title in titles]
    heads = [*titles, *(title.replace("ours", "ratio") for title in ratios)]
    print(f"{'seconds':42}" + "".join(f"{head:>{WIDTH}}" for head in heads))
    for results in everything:
        first = next(iter(results.values()))
        for number, phase in enumerate(first.get("phases", [])):
            seconds = {title: of_phase(results[title], number) for title in titles}
            cells = [text(seconds[title], 2) for title in titles]
            cells += [ratio(seconds[ours], seconds[RATIOS[ours]]) for ours in ratios]
            name = ": ".join(filter(None, (first["program"], phase["phase"])))
            print(f"{name:42}" + "".join(f"{cell:>{WIDTH}}" for cell in cells))
    print("ratio: ours to the kernel's")


def of_phase(result, number):
    return result["phases"][number]["seconds"] if "phases" in result else None


def ratio(ours, kernel):
    return text(ours / kernel if ours and kernel else None, 2)


def text(number, digits):
    return "-" if number is None else f"{number:,.{digits}f}"


FIGURES = [
    ("seconds", "seconds", 1),
    ("CPU s", "cpu_seconds", 1),
    ("major faults", "major_faults", 0),
    ("pages in", "pages_in", 0),
    ("pages out", "pages_out", 0),
    ("pages/read", "pages_per_read", 1),
    ("pages/write", "pages_per_write", 1),
    ("read ahead", "read_ahead", 0),
    ("and used", "read_ahead_hits", 0),
]


def show_figures(everything):
    print(f"{'':36}" + "".join(f"{head:>{WIDTH}}" for head, _, _ in FIGURES))
    for results in everything:
        for title, result in results.items():
            if "missing" in result:
                continue
            cells = [text(figure(result, title, name), digits) for _, name, digits in FIGURES]
            name = f"{result['program']}, {title}"
            print(f"{name:36}" + "".join(f"{cell:>{WIDTH}}" for cell in cells))


def figure(result, title, name):
    """The disk's transfers say nothing about the kernel's zram, nor about a run without a limit."""
    of_disk = name in ("pages_per_read", "pages_per_write")
    return None if of_disk and title in ("no limit", "kernel zram") else result[name]


def show_missing(everything):
    for results in everything:
        for title, result in results.items():
            name = f"{result['program']}, {title}"
            if "missing" in result:
                print(f"{name}: {result['missing']}")
            elif result["killed_before"]:
                print(f"{name}: killed by the kernel in {result['killed_before']} tries before")
