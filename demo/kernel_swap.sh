#!/usr/bin/env bash
# Runs a command within a memory limit, with the kernel's swap, for comparison with Highwater.
#
#   demo/kernel_swap.sh disk|zram LIMIT_MIB SWAP_MIB DIRECTORY COMMAND...
#
# disk: a swap file in DIRECTORY. zram: compressed memory (lz4), which the limit does not count.
# Needs root, a memory cgroup and permission to call swapon. The exit status is 77, with a reason on
# stderr, if the machine does not allow this, and 124 if the command takes longer than
# KERNEL_SWAP_SECONDS (900). However the script ends, it turns swap off and removes the cgroup.
set -euo pipefail

unavailable() {
    printf '%s\n' "$*" >&2
    exit 77
}

kind=$1 limit=$(($2 << 20)) swap_mib=$3 directory=$4
shift 4
file= swap= zram= cgroup= reader=

# Kills the processes that the command left in the cgroup, and waits for their end.
empty_cgroup() {
    local pid tries
    for ((tries = 0; tries < 100; tries++)); do
        pid=$(head -n 1 "$cgroup/cgroup.procs") && [ -n "$pid" ] || return 0
        kill -KILL "$pid" 2>/dev/null || true
        sleep 0.1
    done
}

cleanup() {
    [ -z "$reader" ] || kill "$reader" || true
    [ -z "$cgroup" ] || empty_cgroup
    # swapoff reads swapped-out pages back; there are none once the command has ended.
    [ -z "$swap" ] || timeout 120 swapoff "$swap" || true
    [ -z "$zram" ] || {
        echo 1 >"/sys/block/zram$zram/reset"
        echo "$zram" >/sys/class/zram-control/hot_remove
    } || true
    [ -z "$file" ] || rm -f "$file"
    [ -z "$cgroup" ] || rmdir "$cgroup" || true
}
trap cleanup EXIT
trap 'exit 130' INT TERM

[ "$(id -u)" -eq 0 ] || unavailable "needs root"
for program in mkswap swapon swapoff; do
    command -v "$program" >/dev/null || unavailable "needs $program"
done

# Waits until no other run uses a device of the highest priority: pages would be spread over both.
wait_for_others() {
    local tries
    for ((tries = 0; tries < 300; tries++)); do
        awk '$5 == 32767 { found = 1 } END { exit found }' /proc/swaps && return 0
        sleep 1
    done
    unavailable "another run's swap is on: $(awk '$5 == 32767 { print $1 }' /proc/swaps)"
}

limit_memory() { # makes the cgroup
    local root limit_file
    if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
        root=/sys/fs/cgroup limit_file=memory.max
        echo +memory 2>/dev/null >"$root/cgroup.subtree_control" || true
    else
        root=/sys/fs/cgroup/memory limit_file=memory.limit_in_bytes
    fi
    mkdir "$root/highwater-demo.$$" 2>/dev/null || unavailable "no cgroup can be made in $root"
    cgroup=$root/highwater-demo.$$
    [ -e "$cgroup/$limit_file" ] || unavailable "$root has no memory controller"
    echo "$limit" >"$cgroup/$limit_file"
}

# Reads the cgroup's statistics a hundred times a second, which makes the kernel update them. By
# itself the kernel updates them every two seconds, and reclaim uses them to decide whether to age
# the active list: without this, programs that swap fast are killed with all of their memory on that
# list (seen with Linux 6.18).
keep_statistics_fresh() {
    local never
    exec {never}<> <(:)
    while mapfile -t _ <"$cgroup/memory.stat"; do
        read -rt 0.01 <&"$never" || true
    done 2>/dev/null
}

swap_on_disk() {
    file=$directory/kernel.swap
    fallocate -l "${swap_mib}M" "$file" && chmod 600 "$file" && mkswap "$file" >/dev/null ||
        unavailable "no swap file can be made in $directory"
    timeout 60 swapon -p 32767 "$file" 2>/dev/null ||
        unavailable "swapon is not permitted, or not on this file system"
    swap=$file
}

swap_on_zram() {
    modprobe zram num_devices=0 2>/dev/null || true
    [ -e /sys/class/zram-control/hot_add ] || unavailable "the kernel has no zram"
    zram=$(cat /sys/class/zram-control/hot_add)
    # The default algorithm of Highwater's zram.
    echo lz4 2>/dev/null >"/sys/block/zram$zram/comp_algorithm" || true
    echo "${swap_mib}M" >"/sys/block/zram$zram/disksize"
    mkswap "/dev/zram$zram" >/dev/null || unavailable "no swap can be made on zram"
    timeout 60 swapon -p 32767 "/dev/zram$zram" 2>/dev/null ||
        unavailable "swapon is not permitted"
    swap=/dev/zram$zram
}

wait_for_others
limit_memory
case $kind in
disk) swap_on_disk ;;
zram) swap_on_zram ;;
*) unavailable "disk or zram" ;;
esac
keep_statistics_fresh </dev/null >/dev/null &
reader=$!
# The shell joins the cgroup before it executes the command. With --foreground, an interrupt reaches
# the command together with this script.
status=0
timeout --foreground -k 10 "${KERNEL_SWAP_SECONDS:-900}" \
    sh -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$cgroup" "$@" || status=$?
exit "$status"
