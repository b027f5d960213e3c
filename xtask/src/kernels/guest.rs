//! One machine: boots a kernel in qemu, and reads what the checks write to its console.

use crate::tool::Trouble;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// Seconds after which a guest is ended.
const TIME_LIMIT: &str = "1200";

/// A kind of machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Machine {
    /// One CPU.
    Single,
    /// Four CPUs on two NUMA nodes.
    Nodes,
}

impl Machine {
    pub(super) const ALL: [Machine; 2] = [Machine::Single, Machine::Nodes];

    pub(super) fn cpus(self) -> usize {
        match self {
            Machine::Single => 1,
            Machine::Nodes => 4,
        }
    }

    /// Its name in tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Machine::Single => "one CPU",
            Machine::Nodes => "four CPUs on two NUMA nodes",
        }
    }

    fn arguments(self) -> &'static [&'static str] {
        match self {
            Machine::Single => &["-m", "1500M", "-smp", "1"],
            Machine::Nodes => &[
                "-m",
                "1536M",
                "-smp",
                "4",
                "-object",
                "memory-backend-ram,id=m0,size=768M",
                "-object",
                "memory-backend-ram,id=m1,size=768M",
                "-numa",
                "node,cpus=0-1,memdev=m0",
                "-numa",
                "node,cpus=2-3,memdev=m1",
            ],
        }
    }
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Passed,
    /// With the reason.
    Failed(String),
    /// This kernel or machine cannot run it, with the reason.
    NotRun(String),
}

/// A check, and its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Checked {
    pub(super) name: String,
    pub(super) outcome: Outcome,
}

/// Boots a kernel and runs the checks whose names contain one of the parts; all, if there are none.
/// Prints the guest's lines as they come.
///
/// # Errors
/// qemu does not start, or the guest ends before its checks.
pub(super) fn run(
    machine: Machine,
    kernel: &Path,
    archive: &Path,
    parts: &[String],
) -> Result<Vec<String>, Trouble> {
    let parts = parts.join(";").replace(' ', "_");
    let line = format!("console=ttyS0 panic=-1 HIGHWATER_CHECKS={parts}");
    let mut qemu = Command::new("timeout");
    qemu.args([TIME_LIMIT, "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max"]);
    qemu.args(["-nographic", "-no-reboot", "-net", "none"]).args(machine.arguments());
    qemu.arg("-kernel").arg(kernel).arg("-initrd").arg(archive).args(["-append", &line]);
    let mut qemu = qemu.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let console = qemu.stdout.take().ok_or_else(|| Trouble("no console".to_owned()))?;
    let (mut lines, mut boot, mut has_ended) = (Vec::new(), Vec::new(), false);
    for line in BufReader::new(console).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).trim_end().to_owned();
        has_ended |= line == "guest ends";
        if ["check ", "guest ", "stuck "].iter().any(|start| line.starts_with(start)) {
            println!("{line}");
            lines.push(line);
        } else {
            boot.push(line);
        }
    }
    qemu.wait()?;
    if !has_ended {
        let last = boot.iter().rev().take(20).rev().map(String::as_str);
        return Err(Trouble(format!(
            "the guest did not end:\n{}",
            last.collect::<Vec<_>>().join("\n")
        )));
    }
    Ok(lines)
}

/// The check of a console's line.
pub(super) fn checked(line: &str) -> Option<Checked> {
    let (name, result) = line.strip_prefix("check ")?.split_once(": ")?;
    let outcome = match (result.strip_prefix("failed: "), result.strip_prefix("not run: ")) {
        (Some(reason), _) => Outcome::Failed(reason.to_owned()),
        (None, Some(reason)) => Outcome::NotRun(reason.to_owned()),
        (None, None) => Outcome::Passed,
    };
    Some(Checked { name: name.to_owned(), outcome })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_console_are_read() {
        let of = |line| checked(line).map(|checked| (checked.name, checked.outcome));
        let named = |name: &str, outcome| Some((name.to_owned(), outcome));
        assert_eq!(of("check sort: ok 3.4"), named("sort", Outcome::Passed));
        let failed = Outcome::Failed("status 1: no".to_owned());
        assert_eq!(of("check sort: failed: status 1: no"), named("sort", failed));
        let not_run = Outcome::NotRun("no zram".to_owned());
        assert_eq!(of("check C, a: not run: no zram"), named("C, a", not_run));
        assert_eq!(of("[ 1.0] Run /init"), None);
    }
}
