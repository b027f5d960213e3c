//! C programs, built with the files that `make c-files` installs, in every way that they offer.

use crate::common::{ROOT, built, ended, run, without_variables_of_make};
use highwater_platform::testing::skip_or_fail;
use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Once;
use tempfile::TempDir;

/// The prefix that a package is built for.
const PREFIX: &str = "/opt/highwater";
const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];
/// C99 with the functions of POSIX.
const LANGUAGE: [&str; 4] = ["-O1", "-pthread", "-std=c99", "-D_POSIX_C_SOURCE=200809L"];

/// How a program gets the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Static,
    Shared,
}

/// The directory into which one test of this process installs the library, for all of them.
const DESTDIR: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/installed");

/// Installs this build, as a packager does.
fn install() {
    let _ = std::fs::remove_dir_all(DESTDIR);
    let mut make = Command::new("make");
    make.args(["--silent", "--directory"]).arg(Path::new(ROOT).join("../..")).arg("c-files");
    without_variables_of_make(&mut make);
    make.arg(format!("C_LIBRARIES={}", built().display()));
    ended(&run(make.args([format!("PREFIX={PREFIX}"), format!("DESTDIR={DESTDIR}")])));
    forget_contents(&installed("lib/libhighwater.so"));
}

/// Takes a file out of the page cache, so that it is read when it is used. A file that was just
/// written is cached in large folios, which the kernel maps whole: 0.7 MiB more of the library than
/// users have.
fn forget_contents(path: &Path) {
    let file = File::open(path).expect("a file");
    file.sync_all().expect("a file on disk");
    fadvise(&file, 0, None, Advice::DontNeed).expect("advice on a file");
}

/// An installed file, or directory.
fn installed(path: &str) -> PathBuf {
    Path::new(DESTDIR).join(PREFIX.trim_start_matches('/')).join(path)
}

/// Installed files, and a directory for programs and swap files of a test.
struct Tree {
    dir: TempDir,
}

impl Tree {
    fn new() -> Tree {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(install);
        Tree { dir: tempfile::tempdir().expect("a directory") }
    }

    /// Options of cc from the pkg-config file.
    fn flags(&self, link: Link) -> Vec<String> {
        let mut config = Command::new("pkg-config");
        config.env("PKG_CONFIG_PATH", installed("lib/pkgconfig"));
        config.args(["--cflags", "--libs", "highwater"]);
        config.arg(format!("--define-variable=prefix={}", installed("").display()));
        if link == Link::Static {
            config.arg("--static");
        }
        let flags = ended(&run(&mut config));
        let words = flags.split_whitespace().map(str::to_owned);
        match link {
            Link::Shared => words.collect(),
            // The compiler would prefer the shared library in the same directory.
            Link::Static => {
                words.map(|word| word.replace("-lhighwater", "-l:libhighwater.a")).collect()
            }
        }
    }

    /// Builds a program of this package.
    fn program(&self, source: &str, link: Link) -> Command {
        let output = self.dir.path().join(format!("{link:?}-{}", source.replace('/', "-")));
        let mut cc = Command::new("cc");
        cc.args(LANGUAGE).args(WARNINGS).arg(Path::new(ROOT).join(source));
        ended(&run(cc.args(self.flags(link)).arg("-o").arg(&output)));
        let mut program = Command::new(output);
        program.env("LD_LIBRARY_PATH", installed("lib"));
        program
    }

    /// An empty directory for swap files.
    fn swap_dir(&self, name: &str) -> String {
        let dir = self.dir.path().join(name);
        std::fs::create_dir_all(&dir).expect("a directory");
        dir.display().to_string()
    }
}

/// An installed tree; `None`: pkg-config is missing.
fn tree() -> Option<Tree> {
    if Command::new("pkg-config").arg("--version").output().is_err() {
        skip_or_fail("no pkg-config");
        return None;
    }
    Some(Tree::new())
}

/// Both ways to serve faults.
const FAULTS: [&str; 2] = ["handlers", "in-thread"];

fn lines(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stderr);
    text.lines().map(str::to_owned).collect()
}

#[test]
fn the_examples_check_their_results() {
    let Some(tree) = tree() else { return };
    let swap = |name: &str| tree.swap_dir(name);
    for link in [Link::Static, Link::Shared] {
        let mut sort = tree.program("examples/merge_sort.c", link);
        let said = ended(&run(sort.arg("16M").arg(format!("dir:{}:80M", swap("sort")))));
        assert!(said.contains("4194304 numbers sorted"), "{said}");
        let mut table = tree.program("examples/hash_table.c", link);
        let said = ended(&run(table.args(["8M", "ram:40M"])));
        assert!(said.contains("80000 keys, 0 with a wrong count"), "{said}");
        let said = ended(&run(tree.program("examples/full_device.c", link).arg(swap("full"))));
        let refused = said.strip_prefix("HIGHWATER_ERROR_OUT_OF_MEMORY after ").expect("refused");
        let mib = refused.split(' ').next().and_then(|mib| mib.parse().ok());
        assert!(mib.is_some_and(|mib: u64| (14..=16).contains(&mib)), "{said}");
        assert!(said.contains("alloc: memory and swap have "), "{said}");
        let refused = run(tree.program("examples/merge_sort.c", link).arg("much"));
        assert_eq!(refused.status.code(), Some(1));
        assert_eq!(lines(&refused).len(), 1, "{:?}", lines(&refused));
        assert!(lines(&refused)[0].starts_with("merge_sort: open: memory 'much' is not a size"));
    }
}

#[test]
fn bad_arguments_return_codes() {
    let Some(tree) = tree() else { return };
    for faults in FAULTS {
        let mut program = tree.program("tests/programs/codes.c", Link::Shared);
        ended(&run(program.env("FAULTS", faults)));
    }
}

/// The largest resident set beyond a budget of 8 MiB: code, tables, keys and tags of the swap file,
/// and memory of the C library.
const OVERHEAD_KIB: i64 = 8 << 10;

#[test]
fn contents_stay_within_the_budget() {
    let Some(tree) = tree() else { return };
    for faults in FAULTS {
        for swap in ["ram:64M".to_owned(), format!("dir:{}:64M", tree.swap_dir("paging"))] {
            let mut program = tree.program("tests/programs/paging.c", Link::Shared);
            let said = ended(&run(program.env("FAULTS", faults).arg(&swap)));
            let beyond: i64 = said.trim().parse().expect("a number");
            let in_memory = swap.starts_with("ram:");
            assert!(in_memory || beyond < OVERHEAD_KIB, "{faults}: {beyond} KiB");
        }
    }
}

#[test]
fn files_have_the_changes_of_their_mappings() {
    let Some(tree) = tree() else { return };
    for faults in FAULTS {
        let mut program = tree.program("tests/programs/files.c", Link::Shared);
        ended(&run(program.env("FAULTS", faults).arg(tree.swap_dir("files"))));
    }
}

#[test]
fn threads_share_a_memory_and_children_have_none() {
    let Some(tree) = tree() else { return };
    for faults in FAULTS {
        let mut program = tree.program("tests/programs/processes.c", Link::Shared);
        let output = run(program.env("FAULTS", faults));
        ended(&output);
        let lines = lines(&output);
        assert!(lines.len() == 1 && lines[0].contains("forked child"), "{lines:?}");
    }
}

#[test]
fn a_lost_page_is_an_error_or_the_end() {
    let Some(tree) = tree() else { return };
    for faults in FAULTS {
        let dir = tree.swap_dir("lost");
        let program = || {
            let mut program = tree.program("tests/programs/lost_page.c", Link::Shared);
            program.env("FAULTS", faults).arg(&dir);
            program
        };
        assert!(lines(&run(&mut program())).is_empty());
        ended(&run(&mut program()));
        let output = run(program().arg("plain"));
        assert_eq!(output.status.signal(), Some(6), "abort(3)");
        let lines = lines(&output);
        assert!(lines.len() == 1 && lines[0].contains("a page could not be read"), "{lines:?}");
    }
}

/// Other names are not exported, since a program may contain a library that has the same names:
/// zstd, or Rust's standard library.
#[test]
fn the_libraries_export_the_functions_of_the_header() {
    let Some(_tree) = tree() else { return };
    let header = std::fs::read_to_string(installed("include/highwater.h")).expect("installed");
    let mut functions: Vec<&str> = header
        .split(|c: char| !c.is_alphanumeric() && !matches!(c, '_' | '(' | '*'))
        .filter_map(|word| word.trim_start_matches('*').split_once('('))
        .map(|(name, _)| name)
        .filter(|name| name.starts_with("highwater_"))
        .collect();
    functions.sort_unstable();
    functions.dedup();
    assert!(functions.len() > 20, "{functions:?}");
    for (library, options) in
        [("lib/libhighwater.a", &["-g"][..]), ("lib/libhighwater.so", &["-g", "--dynamic"])]
    {
        let mut nm = Command::new("nm");
        nm.args(["--defined-only", "--format=posix"]).args(options);
        let symbols = ended(&run(nm.arg(installed(library))));
        let mut names: Vec<&str> = symbols
            .lines()
            .filter(|line| line.contains(' '))
            .filter_map(|line| line.split(' ').next())
            .collect();
        names.sort_unstable();
        assert_eq!(names, functions, "{library}");
    }
}

const CPP: &str = "\
#include <highwater.h>
#include <cstring>
int main()
{
    highwater_options *options = highwater_options_new();
    highwater_memory *memory = nullptr;
    highwater_options_set(options, \"seal\", \"maybe\");
    highwater_status status = highwater_open(options, &memory);
    highwater_options_free(options);
    return status != HIGHWATER_ERROR_SETTING || memory || !std::strlen(highwater_error_message())
        || highwater_advise(memory, nullptr, 0, HIGHWATER_ADVICE_RANDOM) != HIGHWATER_ERROR_NULL;
}
";

#[test]
fn a_program_of_cpp_links() {
    let Some(tree) = tree() else { return };
    if Command::new("g++").arg("--version").output().is_err() {
        return skip_or_fail("no g++");
    }
    let (source, program) = (tree.dir.path().join("a.cc"), tree.dir.path().join("cpp"));
    std::fs::write(&source, CPP).expect("written");
    let mut compiler = Command::new("g++");
    compiler.args(WARNINGS).args(["-std=c++11", "-o"]).arg(&program).arg(&source);
    ended(&run(compiler.args(tree.flags(Link::Static))));
    ended(&run(&mut Command::new(program)));
}

const PROJECT: &str = "\
cmake_minimum_required(VERSION 3.10)
project(user C)
find_package(highwater 0.1 REQUIRED CONFIG)
find_package(highwater 7.0 QUIET CONFIG)
if(highwater_FOUND)
  message(FATAL_ERROR \"another version is taken\")
endif()
find_package(highwater REQUIRED CONFIG)
foreach(way highwater static)
  add_executable(${way} ${SOURCE})
  target_link_libraries(${way} PRIVATE highwater::${way})
endforeach()
";

#[test]
fn cmake_finds_the_package() {
    let Some(tree) = tree() else { return };
    if Command::new("cmake").arg("--version").output().is_err() {
        return skip_or_fail("no cmake");
    }
    let (project, build) = (tree.swap_dir("project"), tree.swap_dir("build"));
    std::fs::write(Path::new(&project).join("CMakeLists.txt"), PROJECT).expect("written");
    let mut configure = Command::new("cmake");
    configure.args(["-S", &project, "-B", &build]);
    let source = Path::new(ROOT).join("examples/merge_sort.c");
    configure.arg(format!("-DSOURCE={}", source.display()));
    configure.arg(format!("-DCMAKE_PREFIX_PATH={}", installed("").display()));
    ended(&run(&mut configure));
    ended(&run(Command::new("cmake").args(["--build", &build])));
    for way in ["highwater", "static"] {
        let mut sort = Command::new(Path::new(&build).join(way));
        let said = ended(&run(sort.args(["16M", "ram:80M"])));
        assert!(said.contains("4194304 numbers sorted"), "{said}");
    }
}
