//! `highwater doctor`: what this machine allows and what to change, one line per item.

use crate::elf::Runtime;
use crate::faults::{self, Wish};
use crate::machine::{self, Item, Status};
use crate::{Refusal, preload, swap};
use clap::Args;
use highwater_command::print;
use highwater_devices::{Area, Seal, Server, Spec};
use highwater_session::{Mapping, file_system_name, free_space, is_in_memory};
use rustix::fs::{Mode, OFlags};
use std::path::Path;
use std::process::ExitCode;

/// Check whether programs can run here, and say what to change
///
/// Exit status 0 if `highwater run` works here, 1 if not.
#[derive(Args)]
pub(crate) struct Doctor {
    /// Also try this swap device, as in `highwater run` (may be repeated)
    #[arg(long, value_name = "SPEC")]
    swap: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Doctor {
    /// Prints the items.
    pub(crate) fn execute(&self) -> Result<ExitCode, Refusal> {
        let (faults, system_calls) =
            faults::decide(Wish::Auto, None, machine::permitted(), Runtime::C)?;
        let mut items = machine::requirements(Mapping::Auto, system_calls);
        items.push(machine::page_faults(faults));
        items.extend(machine::advice());
        items.extend(swap_items(&self.swap)?);
        items.push(library());
        let text = if self.json {
            format!("{:#}\n", serde_json::json!({ "works": works(&items), "items": items }))
        } else {
            items.iter().map(line).collect()
        };
        let printed = print(text);
        Ok(if works(&items) { printed } else { ExitCode::FAILURE })
    }
}

fn works(items: &[Item]) -> bool {
    items.iter().all(|item| item.status != Status::Fail)
}

fn line(item: &Item) -> String {
    let status = match item.status {
        Status::Ok => "ok",
        Status::Warn => "warn",
        Status::Fail => "fail",
    };
    let change = item.change.as_ref().map(|change| format!("; {change}")).unwrap_or_default();
    format!("{status:<4}  {:<18}  {}{change}\n", item.name, item.found)
}

fn library() -> Item {
    match preload::find() {
        Ok(path) => Item::ok("library", path.display().to_string()),
        Err(refusal) => Item::refused("library", &refusal),
    }
}

/// The devices given, or the default one. An invalid specification is wrong usage.
fn swap_items(given: &[String]) -> Result<Vec<Item>, Refusal> {
    match swap::devices(given, None) {
        Ok(areas) => Ok(swap_items_of(&areas)),
        Err(refusal) if given.is_empty() => Ok(vec![Item::refused("swap", &refusal)]),
        Err(refusal) => Err(refusal),
    }
}

/// An item for each device. Each is open until the last one is, as in a run.
fn swap_items_of(areas: &[Area]) -> Vec<Item> {
    let opened: Vec<_> = areas.iter().map(|area| swap::open(area, Seal::default())).collect();
    let items = areas.iter().zip(&opened).map(|(area, opened)| match opened {
        Ok(_) => spec_item(&area.spec),
        Err(refusal) => Item::refused("swap", refusal),
    });
    items.collect()
}

/// The item of a device that can be opened.
fn spec_item(spec: &Spec) -> Item {
    const NAME: &str = "swap";
    match spec {
        Spec::Tier { fast, slow } => {
            let (fast, slow) = (spec_item(fast), spec_item(slow));
            Item { found: format!("{}; then {}", fast.found, slow.found), ..slow }
        }
        Spec::Replicate { first, second } => {
            let (first, second) = (spec_item(first), spec_item(second));
            let found = format!("{}; and again {}", first.found, second.found);
            Item { found, ..if second.change.is_some() { second } else { first } }
        }
        Spec::Flaky { device, .. } => spec_item(device),
        Spec::Ram { size } => Item::ok(NAME, format!("{size} of memory")),
        Spec::Zram { size, .. } => {
            let most = spec.capacity();
            Item::ok(NAME, format!("{size} of memory for up to {most}, compressed"))
        }
        Spec::Redis { servers, size } => match &servers[..] {
            [server] => Item::ok(NAME, format!("{size} on the server {server}")),
            servers => {
                let servers: Vec<String> = servers.iter().map(Server::to_string).collect();
                Item::ok(NAME, format!("{size} on the servers {}", servers.join(", ")))
            }
        },
        Spec::Nbd { server, size, .. } => Item::ok(NAME, format!("{size} on the server {server}")),
        Spec::File { path, size } => Item::ok(NAME, format!("{size} in {}", path.display())),
        Spec::Dir { path, size } => directory(NAME, path, &format!("{size} in {}", path.display())),
    }
}

/// The item of a directory's file system.
fn directory(name: &'static str, path: &Path, what: &str) -> Item {
    let system = file_system_name(path).unwrap_or_default();
    let free = free_space(path).unwrap_or_default();
    let found = format!("{what}, on {system} with {free} free");
    let opens = |flags| {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC | flags;
        rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).is_ok()
    };
    if is_in_memory(path) {
        return Item::warn(
            name,
            format!("{found}, which is memory"),
            "use a directory on a disk, or zram:",
        );
    }
    match (opens(OFlags::empty()), opens(OFlags::DIRECT)) {
        (true, true) => Item::ok(name, format!("{found}, O_TMPFILE, O_DIRECT")),
        (true, false) => Item::warn(
            name,
            format!("{found}, O_TMPFILE, no O_DIRECT: pages pass through the page cache"),
            "use a directory on ext4, xfs or btrfs",
        ),
        (false, _) => Item::warn(
            name,
            format!("{found}, no O_TMPFILE: the file has a name for a moment"),
            "use a directory on ext4, xfs or btrfs",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_status_fact_and_change() {
        let item = Item::fail("page move", "missing", "use another kernel");
        assert_eq!(line(&item), "fail  page move           missing; use another kernel\n");
        assert_eq!(line(&Item::ok("kernel", "6.8")), "ok    kernel              6.8\n");
    }

    #[test]
    fn only_failures_are_in_the_way() {
        assert!(works(&[Item::ok("a", ""), Item::warn("b", "", "c")]));
        assert!(!works(&[Item::ok("a", ""), Item::fail("b", "", "c")]));
    }

    #[test]
    fn specs_that_cannot_be_read_are_wrong_usage() {
        assert!(swap_items(&["tape:1G".to_owned()]).is_err());
        let items = swap_items(&["dir:/nonexistent:1M".to_owned()]).unwrap();
        assert_eq!(items[0].status, Status::Fail);
    }
}
