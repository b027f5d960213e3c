//! Swap files are encrypted and authenticated: reading a file reveals nothing, and a change to a
//! file ends the program.

use crate::common::highwater;
use crate::place::{Place, note};
use crate::report::Report;
use std::fs::{File, OpenOptions, read_dir, read_link};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, ExitStatus, Stdio};

const MIB: u64 = 1 << 20;
const PAGE: usize = 4096;
const MARKER: &[u8] = b"highwater-marker";
/// MiB of the program, of which a third fit in memory.
const NEEDS: &str = "12";

/// The program, filled and waiting.
pub(crate) struct Waiting {
    run: Child,
    output: BufReader<ChildStdout>,
}

/// How a run ended.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) output: String,
    pub(crate) errors: String,
}

impl Waiting {
    pub(crate) fn start(place: &Place, program: &Path, swap: &str, options: &[&str]) -> Waiting {
        let mut run = highwater();
        run.args(["run", "--quiet", "--paged", "4M", "--swap", swap]).args(options);
        run.arg("--report").arg(place.path("report.json")).arg("--").arg(program).arg(NEEDS);
        run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut run = run.spawn().unwrap();
        let mut output = BufReader::new(run.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let mut errors = String::new();
        if line != "filled\n" {
            run.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        }
        assert_eq!(line, "filled\n", "{errors}");
        Waiting { run, output }
    }

    pub(crate) fn go_on(mut self) -> Ended {
        self.run.stdin.take().unwrap().write_all(b"\n").unwrap();
        let (mut output, mut errors) = (String::new(), String::new());
        self.output.read_to_string(&mut output).unwrap();
        self.run.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        Ended { status: self.run.wait().unwrap(), output, errors }
    }
}

/// What the program prints without Highwater.
pub(crate) fn without_limits(program: &Path) -> String {
    let mut run = std::process::Command::new(program);
    let mut run = run.arg(NEEDS).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    run.stdin.take().unwrap().write_all(b"\n").unwrap();
    String::from_utf8(run.wait_with_output().unwrap().stdout).unwrap()
}

/// The swap files in a directory that some process has open: any process that may trace that
/// process may open them, too.
fn swap_files(dir: &Path) -> Vec<File> {
    let processes = read_dir("/proc").unwrap().flatten().map(|entry| entry.path().join("fd"));
    let links = processes.flat_map(read_dir).flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<(PathBuf, PathBuf)> = links
        .filter_map(|path| read_link(&path).ok().map(|file| (file, path)))
        .filter(|(file, _)| file.starts_with(dir) && file.to_string_lossy().ends_with("(deleted)"))
        .collect();
    found.sort();
    found.dedup_by(|a, b| a.0 == b.0);
    let open = |path| OpenOptions::new().read(true).write(true).open(path);
    found.into_iter().filter_map(|(_, path)| open(path).ok()).collect()
}

/// The pages of the files that are not zeros.
fn pages_of(files: &[File]) -> Vec<(usize, u64, Vec<u8>)> {
    let mut found = Vec::new();
    for (index, file) in files.iter().enumerate() {
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let pages = bytes.chunks(PAGE).enumerate();
        let used = pages.filter(|(_, page)| page.iter().any(|byte| *byte != 0));
        found.extend(used.map(|(at, page)| (index, (at * PAGE) as u64, page.to_vec())));
    }
    found
}

fn has_marker(page: &[u8]) -> bool {
    page.windows(MARKER.len()).any(|bytes| bytes == MARKER)
}

#[test]
fn a_sealed_file_shows_nothing_and_an_unsealed_one_everything() {
    let place = Place::new();
    let program = place.compile("seal", "seal", &[]);
    let dir = place.path("swap");
    std::fs::create_dir(&dir).unwrap();
    let expected = without_limits(&program);
    let file = format!("dir:{}:128M", dir.display());
    let tier = format!("tier:zram:1M+{file}");
    for (swap, options, sealed) in [
        (&file, &["--seal", "off"][..], false),
        (&file, &[], true),
        (&tier, &[], true),
        (&file, &["--faults", "handlers"], true),
        (&file, &["--large-pages", "on"], true),
    ] {
        let what = format!("{swap} {options:?}");
        let waiting = Waiting::start(&place, &program, swap, options);
        let files = swap_files(&dir);
        let pages = pages_of(&files);
        let shown = pages.iter().filter(|(_, _, page)| has_marker(page)).count();
        note(&format!("{what}: {} pages on disk, {shown} with the marker", pages.len()));
        assert!(pages.len() > 1000, "{what}: {} pages on disk", pages.len());
        assert!(if sealed { shown == 0 } else { shown * 10 > pages.len() * 9 }, "{what}: {shown}");
        let ended = waiting.go_on();
        assert!(ended.status.success(), "{what}: {}", ended.errors);
        assert_eq!(format!("filled\n{}", ended.output), expected, "{what}");
        let report = Report::read(&place.path("report.json"));
        let table = report.number("/vmstat/seal_bytes");
        assert_eq!(table > 0, sealed, "{what}: {table} bytes of tags");
        // 0.7 % of the swap, and some pages for each process.
        assert!(table < 128 * MIB * 7 / 1000 + MIB, "{what}: {table} bytes of tags");
    }
}

#[test]
fn a_file_that_was_changed_ends_the_program() {
    let place = Place::new();
    let program = place.compile("seal", "seal", &[]);
    let dir = place.path("swap");
    std::fs::create_dir(&dir).unwrap();
    let swap = format!("dir:{}:128M", dir.display());
    type Change = fn(&File, u64, &[u8]);
    let flip: Change = |file, at, page| file.write_all_at(&[page[99] ^ 1], at + 99).unwrap();
    // Each page of the file is overwritten by the page of the slot after it.
    let shift: Change = |file, at, _| {
        let mut next = [0; PAGE];
        if file.read_exact_at(&mut next, at + PAGE as u64).is_ok() {
            file.write_all_at(&next, at).unwrap();
        }
    };
    for (what, change, options) in [
        ("a bit of each page", flip, &[][..]),
        ("pages moved", shift, &[]),
        ("a bit of each page, handlers", flip, &["--faults", "handlers"]),
        ("a bit of each page, large pages", flip, &["--large-pages", "on"]),
    ] {
        let waiting = Waiting::start(&place, &program, &swap, options);
        let files = swap_files(&dir);
        for (index, at, page) in pages_of(&files) {
            change(&files[index], at, &page);
        }
        let ended = waiting.go_on();
        note(&format!("{what}: {}, {:?}", ended.status, ended.errors));
        assert!(!ended.status.success() && ended.output.is_empty(), "{what}: {}", ended.output);
        let line = format!("swap {swap} returned a page that was changed since it was written");
        let errors = ended.errors.trim_end();
        assert!(errors.lines().count() == 1 && errors.contains(&line), "{what}: {errors}");
    }
}
