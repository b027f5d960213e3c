#!/usr/bin/env bash
# Sorts 512 MiB of text in 128 MiB of memory, without a limit, and, if the machine allows it, with
# the kernel's swap under the same limit. Compares checksums and prints seconds.
#
#   demo/sort.sh check    checks that there is enough disk space and memory
#   demo/sort.sh run      sorts, and removes its files, however it ends
#
# DEMO_SWAP (dir:DIRECTORY:SIZE, ram:SIZE) says where pages go instead of a file beside the text.
# DEMO_TEXT_MIB makes the text smaller or larger.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C

target=${CARGO_TARGET_DIR:-$PWD/target}
text_mib=${DEMO_TEXT_MIB:-512}
limit_mib=$((text_mib / 4))
swap_mib=$((text_mib * 5 / 2))
disk_mib=$((text_mib * 5))
memory_mib=$((text_mib * 2))
sort=(sort -S "${memory_mib}M" --parallel=2)

say() { printf '\n== %s\n' "$*"; }

fail() {
    printf 'demo: %s\n' "$*" >&2
    exit 1
}

check() {
    mkdir -p "$target"
    local free available
    free=$(df --output=avail -m "$target" | tail -n 1)
    [ "$free" -ge "$disk_mib" ] ||
        fail "needs $disk_mib MiB of free disk, $target has $((free))"
    available=$(awk '/^MemAvailable:/ { print int($2 / 1024) }' /proc/meminfo)
    [ "$available" -ge "$memory_mib" ] ||
        fail "the sort without a limit needs $memory_mib MiB of memory, there are $available"
}

# Sorts the text with a command into $work/sum, and sets `seconds`. Returns its status.
timed() {
    local start end status=0
    start=$(date +%s%N)
    "$@" "${sort[@]}" "$work/text" 2>"$work/stderr" | sha256sum | cut -d ' ' -f 1 >"$work/sum" ||
        status=$?
    end=$(date +%s%N)
    cat "$work/stderr" >&2
    seconds="$(((end - start) / 1000000000)).$(((end - start) / 100000000 % 10)) s"
    return "$status"
}

add_row() { rows+=("$(printf '  %-28s %9s   %s' "$@")"); }

# Compares the checksum with the first run's, and adds a row: NAME LIMIT TIME.
record() {
    cat "$work/sum"
    [ -n "${expected:-}" ] || expected=$(cat "$work/sum")
    [ "$expected" = "$(cat "$work/sum")" ] || fail "$1: wrong output"
    add_row "$@"
}

# measure NAME LIMIT COMMAND...: a run that must succeed.
measure() {
    local name=$1 limit=$2 status=0
    shift 2
    say "$name"
    timed "$@" || status=$?
    [ "$status" -eq 0 ] || fail "$name: exit status $status"
    record "$name" "$limit" "$seconds"
}

# measure_kernel KIND: a run with the kernel's swap, unless the machine does not allow it (status
# 77). The kernel may kill the run for lack of memory (status 137); there are three tries.
measure_kernel() {
    local name="kernel swap on $1" limit="$limit_mib MiB" status killed=0
    say "$name"
    while :; do
        status=0
        timed demo/kernel_swap.sh "$1" "$limit_mib" "$swap_mib" "$work" || status=$?
        [ "$status" -eq 137 ] && [ "$killed" -lt 2 ] || break
        killed=$((killed + 1))
    done
    case $status in
    0)
        [ "$killed" -eq 0 ] || seconds+=" (killed by the kernel in $killed tries before)"
        record "$name" "$limit" "$seconds"
        ;;
    77) add_row "$name" "$limit" "not measured: $(tail -n 1 "$work/stderr")" ;;
    124) add_row "$name" "$limit" "not finished within 900 s" ;;
    137) add_row "$name" "$limit" "killed by the kernel: out of memory, 3 of 3 tries" ;;
    *) fail "$name: exit status $status" ;;
    esac
}

run() {
    work=$(mktemp -d "$target/demo.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT TERM
    rows=()

    say "$text_mib MiB of random lines"
    "$target/release/examples/random_lines" "$((text_mib << 20))" 1 >"$work/text"

    # The kernel's limit does not count zram, so Highwater's must not: --paged leaves zram out.
    local highwater=("$target/release/highwater" run)
    measure "sort without a limit" none env
    measure "Highwater, swap on disk" "$limit_mib MiB" \
        "${highwater[@]}" --memory "${limit_mib}M" --swap "${DEMO_SWAP:-dir:$work:${swap_mib}M}" --
    measure "Highwater, swap on zram" "$limit_mib MiB" \
        "${highwater[@]}" --paged "${limit_mib}M" --swap "zram:${swap_mib}M" --
    measure_kernel disk
    measure_kernel zram

    say "the output is the same each time; sort may use $memory_mib MiB of memory"
    printf '  %-28s %9s   %s\n' "" limit time
    printf '%s\n' "${rows[@]}"
}

case ${1-} in
check) check ;;
run) run ;;
*) fail "usage: demo/sort.sh check|run" ;;
esac
