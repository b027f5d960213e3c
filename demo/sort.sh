#!/usr/bin/env bash
# Sorts 512 MiB of text in 128 MiB of memory, and compares with a sort that may use all it wants.
#
#   demo/sort.sh check    whether there is room for it
#   demo/sort.sh run      does it, and removes its files, whatever its end
#
# DEMO_SWAP (dir:DIRECTORY:SIZE, ram:SIZE) says where pages go instead of a file beside the text.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C

target=${CARGO_TARGET_DIR:-$PWD/target}
text_bytes=$((512 << 20))
disk_mib=2560
memory_mib=1024
sort=(sort -S 1G --parallel=2)

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
        fail "the unlimited sort needs $memory_mib MiB of memory, there are $available"
}

# Runs a command with the text as its last argument; prints the checksum of what it sorted.
checksum() { "$@" "$work/text" | sha256sum | cut -d ' ' -f 1; }

run() {
    work=$(mktemp -d "$target/demo.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT TERM

    say "512 MiB of random lines"
    "$target/release/examples/random_lines" "$text_bytes" 1 >"$work/text"
    ls -l "$work/text"

    say "GNU sort, with all the memory it wants"
    local start=$SECONDS expected found
    expected=$(checksum "${sort[@]}")
    echo "$expected  ($((SECONDS - start)) s)"

    say "the same within 128 MiB"
    start=$SECONDS
    found=$(checksum "$target/release/highwater" run --progress --memory 128M \
        --swap "${DEMO_SWAP:-dir:$work:1280M}" -- "${sort[@]}")
    echo "$found  ($((SECONDS - start)) s)"

    [ "$expected" = "$found" ] || fail "the checksums differ"
    say "the checksums are equal"
}

case ${1-} in
check) check ;;
run) run ;;
*) fail "usage: demo/sort.sh check|run" ;;
esac
