//! Programs whose memory is also swapped out by the host: to the kernel's swap, on a zram device.

use crate::place::{Limits, Place};
use highwater_platform::testing::skip_or_fail;
use std::fs;
use std::io;
use std::process::Command;
use std::thread;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const CONTROL: &str = "/sys/class/zram-control";
/// Attempts to remove a device, which the system may hold open for a moment.
const REMOVALS: u32 = 50;

/// A zram device that the kernel swaps to, until this is dropped.
struct HostSwap {
    index: String,
}

impl HostSwap {
    fn start(size: u64) -> Result<HostSwap, String> {
        let index = fs::read_to_string(format!("{CONTROL}/hot_add"));
        let index = index.map_err(|error| format!("no zram: {error}"))?.trim().to_owned();
        let swap = HostSwap { index };
        let disk_size = format!("/sys/block/zram{}/disksize", swap.index);
        fs::write(disk_size, size.to_string()).map_err(|error| error.to_string())?;
        swap.run("mkswap", &[])?;
        swap.run("swapon", &["--priority", "32767"])?;
        Ok(swap)
    }

    fn run(&self, command: &str, options: &[&str]) -> Result<(), String> {
        let device = format!("/dev/zram{}", self.index);
        let done = Command::new(command).args(options).arg(device).output();
        match done.map_err(|error| format!("{command}: {error}"))? {
            done if done.status.success() => Ok(()),
            done => Err(format!("{command}: {}", String::from_utf8_lossy(&done.stderr))),
        }
    }

    fn remove(&self) -> io::Result<()> {
        fs::write(format!("/sys/block/zram{}/reset", self.index), "1")?;
        fs::write(format!("{CONTROL}/hot_remove"), &self.index)
    }
}

impl Drop for HostSwap {
    fn drop(&mut self) {
        // Fails if the device never became swap.
        let _ = self.run("swapoff", &[]);
        let mut left = REMOVALS;
        while self.remove().is_err() && left > 0 {
            thread::sleep(Duration::from_millis(20));
            left -= 1;
        }
    }
}

fn compare(sections: &[&str], limits: &Limits) {
    let place = Place::new();
    let _swap = match HostSwap::start(512 * MIB) {
        Ok(swap) => swap,
        Err(reason) => return skip_or_fail(format_args!("no swap on zram: {reason}")),
    };
    let what = format!("host, {}, {}", limits.mapping, limits.large_pages);
    let program = place.c_program("host", &[&["24"], sections].concat());
    let unlimited = place.run(&program).expect_success(&what);
    place.compare_output(&what, &unlimited, limits, &program).expect_swapping();
}

/// Sections of a program that needs 24 MiB.
const EVERYBODYS: [&str; 3] = ["evicted", "forked", "changed"];

#[test]
fn pages_that_the_host_swaps_out_keep_contents() {
    compare(&EVERYBODYS, &Limits::of(12 * MIB));
}

#[test]
fn pages_that_the_host_swaps_out_keep_contents_when_copied() {
    compare(&EVERYBODYS, &Limits { mapping: "copy", ..Limits::of(12 * MIB) });
}

#[test]
fn pages_that_the_host_swaps_out_keep_contents_with_large_pages() {
    compare(&EVERYBODYS, &Limits { large_pages: "on", ..Limits::of(12 * MIB) });
}

/// Regression: a child that may not open /proc/self/pagemap took such pages for pages that had
/// vanished.
#[test]
fn a_child_without_privileges_keeps_pages_that_the_host_swaps_out() {
    compare(&["unprivileged"], &Limits::of(12 * MIB));
}
