//! `make test-kernels`: boots the kernels that users have, in qemu without KVM, and runs programs
//! under Highwater in each.
//!
//! ```text
//! packages.toml --apt--> kernels ------------\
//! this machine's programs --> root.rs: tree --> guest.rs: qemu --> console --> table.rs
//!                             guest/checks.py: what runs there
//! ```
//! The console's lines of each guest are kept in target/kernels/results, and the table is made of
//! all of them: some kernels can be run anew.

mod guest;
mod packages;
mod root;
mod table;

use crate::tidy::ROOT;
use crate::tool::{self, Trouble};
use clap::Args;
use guest::{Machine, Outcome};
use packages::Kernel;
use root::Root;
use std::fs;
use std::path::{Path, PathBuf};
use table::Column;

/// The page with the table.
const PAGE: &str = "docs/kernels.md";

/// Boot kernels in qemu, and run Highwater's programs in each.
#[derive(Args)]
pub struct Options {
    /// Only this kernel, by its version's first two numbers (may be repeated).
    #[arg(long, value_name = "VERSION")]
    kernel: Vec<String>,
    /// Only machines with this number of CPUs: 1 or 4.
    #[arg(long, value_name = "NUMBER")]
    cpus: Option<usize>,
    /// Only checks whose names contain this (may be repeated); the table keeps the others' results.
    #[arg(long, value_name = "PART")]
    only: Vec<String>,
}

/// Runs the guests; prints a table, and with HIGHWATER_WRITE_DOCS in the environment writes it into
/// the documentation. Returns how many checks failed.
///
/// # Errors
/// Nothing can be run, or a kernel that was asked for does not exist.
pub fn run(options: &Options) -> Result<usize, Trouble> {
    let kernels = chosen(&packages::all(), &options.kernel)?;
    let target = tool::target();
    let dir = target.join("kernels");
    fs::create_dir_all(dir.join("results"))?;
    let root = Root::new(dir.join("root"), Path::new(ROOT), &target.join("release"))?;
    let images: Vec<_> = kernels.iter().map(|kernel| image(kernel, &dir, &root)).collect();
    let archive = dir.join("root.cpio");
    root.pack(&archive)?;
    let machines = Machine::ALL
        .into_iter()
        .filter(|machine| options.cpus.is_none_or(|cpus| cpus == machine.cpus()));
    let mut failed = 0;
    for machine in machines {
        for (kernel, image) in kernels.iter().zip(&images) {
            println!("Linux {} ({}), {}", kernel.name, kernel.system, machine.name());
            let image = image.as_ref().map_err(|trouble| Trouble(trouble.0.clone()));
            let run = image.and_then(|image| guest::run(machine, image, &archive, &options.only));
            let lines = run.unwrap_or_else(|trouble| vec![format!("trouble {}", trouble.0)]);
            failed += failures(&lines);
            let file = result(&dir, kernel, machine);
            let before = fs::read_to_string(&file).unwrap_or_default();
            fs::write(file, merged(&before, &lines))?;
        }
    }
    show(&dir)?;
    Ok(failed)
}

/// The kernels with these names; all, if there are no names.
fn chosen(all: &[Kernel], names: &[String]) -> Result<Vec<Kernel>, Trouble> {
    let have = || all.iter().map(|kernel| kernel.name.as_str()).collect::<Vec<_>>().join(", ");
    let of = |name: &String| {
        let found = all.iter().find(|kernel| kernel.name == *name).cloned();
        found.ok_or_else(|| Trouble(format!("no kernel {name}: choose from {}", have())))
    };
    match names.is_empty() {
        true => Ok(all.to_vec()),
        false => names.iter().map(of).collect(),
    }
}

/// Fetches a kernel, and adds its modules to the tree. Returns its image.
fn image(kernel: &Kernel, dir: &Path, root: &Root) -> Result<PathBuf, Trouble> {
    let contents = kernel.unpack(dir)?;
    root.add_modules(&contents)?;
    packages::image(&contents)
}

/// The checks that failed, and guests that did not run, in lines of a console.
fn failures(lines: &[String]) -> usize {
    let bad = |line: &&String| {
        let check = guest::checked(line);
        check.is_some_and(|check| matches!(check.outcome, Outcome::Failed(_)))
            || line.starts_with("trouble ")
    };
    lines.iter().filter(bad).inspect(|line| println!("{line}")).count()
}

/// The lines of a guest, with those before of checks that were not run now.
fn merged(before: &str, lines: &[String]) -> String {
    let name = |line: &str| guest::checked(line).map(|check| check.name);
    let now: Vec<_> = lines.iter().filter_map(|line| name(line)).collect();
    let is_left = |line: &&str| name(line).is_some_and(|name| !now.contains(&name));
    let kept = before.lines().filter(is_left);
    kept.chain(lines.iter().map(String::as_str)).collect::<Vec<_>>().join("\n")
}

/// The file with the lines of a guest.
fn result(dir: &Path, kernel: &Kernel, machine: Machine) -> PathBuf {
    dir.join("results").join(format!("{}-{}", kernel.name, machine.cpus()))
}

/// Prints the tables of all results, or writes them.
fn show(dir: &Path) -> Result<(), Trouble> {
    let mut tables = Vec::new();
    for machine in Machine::ALL {
        let columns = packages::all().into_iter().filter_map(|kernel| {
            let text = fs::read_to_string(result(dir, &kernel, machine)).ok()?;
            let trouble = text.lines().find_map(|line| line.strip_prefix("trouble "));
            let checks = match trouble {
                Some(reason) => Err(reason.to_owned()),
                None => Ok(text.lines().filter_map(guest::checked).collect()),
            };
            Some(Column { kernel, checks })
        });
        let columns: Vec<Column> = columns.collect();
        if !columns.is_empty() {
            tables.push(table::of(machine.name(), &columns));
        }
    }
    let tables = tables.join("\n");
    if std::env::var_os("HIGHWATER_WRITE_DOCS").is_none() {
        print!("{tables}");
        return Ok(());
    }
    let page = Path::new(ROOT).join(PAGE);
    let text = table::replaced(&fs::read_to_string(&page)?, &tables);
    fs::write(&page, text.ok_or_else(|| Trouble(format!("{PAGE} has no place for tables")))?)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_chosen_by_name() {
        let all = packages::all();
        assert_eq!(chosen(&all, &[]).unwrap().len(), all.len());
        let one = chosen(&all, &["6.1".to_owned()]).unwrap();
        assert_eq!(one.iter().map(|kernel| kernel.name.as_str()).collect::<Vec<_>>(), ["6.1"]);
        let refusal = chosen(&all, &["2.4".to_owned()]).unwrap_err();
        assert!(refusal.0.starts_with("no kernel 2.4: choose from 5.10, "), "{}", refusal.0);
    }

    #[test]
    fn results_of_checks_that_were_not_run_now_are_kept() {
        let now = ["guest 6.1", "check b: ok 2.0"].map(str::to_owned);
        let before = "trouble x\ncheck a: ok 1.0\ncheck b: failed: y";
        assert_eq!(merged(before, &now), "check a: ok 1.0\nguest 6.1\ncheck b: ok 2.0");
    }

    #[test]
    fn checks_that_fail_and_guests_that_do_not_run_are_counted() {
        let lines = ["check a: ok 1.0", "check b: failed: x", "check c: not run: y", "trouble z"];
        assert_eq!(failures(&lines.map(str::to_owned)), 2);
    }
}
