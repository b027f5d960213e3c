//! Programs in Go: linked with the C library, or static.

use crate::common::binary;
use crate::packages::is_installed;
use crate::place::Place;
use crate::report::Report;
use highwater_platform::testing::skip_or_fail;
use std::fs::{File, copy, read, write};
use std::iter::once;
use std::path::PathBuf;
use std::process::{Command, Output};

/// Go's runtime replaces the handlers of SIGBUS and SIGSYS by system calls of its own. A program
/// that contains it is never served by signals: as a child by handlers or not at all. Regression:
/// it was, and such a signal ended it in 7 of 13 runs.
#[test]
fn a_program_that_takes_the_signals_of_faults_is_not_served_by_them() {
    let place = Place::beside_others();
    let program = place.compile("takes_signals", "takes_signals", &[]);
    let run = |before: &[&str]| {
        let swap = ["--faults", "in-thread", "--memory", "32M", "--swap", "ram:256M", "--"];
        let mut command = Command::new(binary());
        command.arg("run").args(swap).args(before).arg(&program).output().expect("a run")
    };
    let output = run(&["env"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let refused = run(&[]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("is a Go program") && said.contains("--faults handlers"), "{said}");
}

/// Go's heap is paged, by handlers that `highwater run` chooses: promtool reads 50,000 metrics.
#[test]
fn the_heap_of_a_go_program_is_paged() {
    if !is_installed("promtool") {
        return skip_or_fail("promtool is not installed");
    }
    let place = Place::beside_others();
    let metrics = (0..50_000).map(|index| format!("sent_total{{to=\"{index}\"}} {index}\n"));
    let head = "# HELP sent_total Messages.\n# TYPE sent_total counter\n".to_owned();
    write(place.path("metrics"), once(head).chain(metrics).collect::<String>()).unwrap();
    let check = |command: &mut Command| {
        let input = File::open(place.path("metrics")).unwrap();
        command.args(["check", "metrics", "--extended"]).stdin(input).output().unwrap()
    };
    let alone = check(&mut Command::new("promtool"));
    assert!(alone.status.success() && alone.stdout.starts_with(b"Metric"), "{alone:?}");
    let swapped = |godebug| {
        let mut command = Command::new(binary());
        command.args(["run", "--paged", "12M", "--swap", "ram:512M", "--report"]);
        command.arg(place.path("report.json")).args(["--", "promtool"]).env("GODEBUG", godebug);
        let served = check(&mut command);
        let errors = String::from_utf8_lossy(&served.stderr);
        if served.status.code() == Some(2) && errors.contains("is a Go program") {
            skip_or_fail(&errors);
            return None;
        }
        assert!(served.status.success() && served.stdout == alone.stdout, "{errors}");
        Some(Report::read(&place.path("report.json")).number("/vmstat/pswpout"))
    };
    // With `madvdontneed=1` Go relies on zeros in pages that it has freed: its heap is not paged.
    if let (Some(lazily), Some(at_once)) = (swapped(""), swapped("madvdontneed=1")) {
        assert!(lazily > 3000 && at_once < 1000, "{lazily} and {at_once} pages");
    }
}

/// The Go compiler is itself a static program. It takes any other Go program as its input.
#[test]
fn a_static_go_program_is_paged() {
    let Some(compiler) = compiler() else { return };
    let place = Place::beside_others();
    write(place.path("input.go"), functions(500)).unwrap();
    let compile = |command: &mut Command, object: &str| {
        let arguments = ["-p", "main", "-o", object, "input.go"];
        printed(&command.args(arguments).current_dir(place.path("")).output().unwrap())
    };
    compile(&mut Command::new(&compiler), "alone.o");
    let mut command = Command::new(binary());
    command.args(["run", "--paged", "16M", "--swap", "ram:512M", "--report"]);
    compile(command.arg(place.path("report.json")).arg("--").arg(&compiler), "served.o");
    let report = Report::read(&place.path("report.json"));
    report.expect_swapping();
    assert_eq!(report.number("/processes_by_handlers"), 1);
    let [alone, served] = ["alone.o", "served.o"].map(|object| read(place.path(object)).unwrap());
    assert!(alone == served, "the objects differ");
}

/// A shell and Python start it.
#[test]
fn static_go_children_are_paged() {
    let Some(compiler) = compiler() else { return };
    let place = Place::beside_others();
    write(place.path("input.go"), functions(200)).unwrap();
    let [by_shell, by_python] = ["by_shell.o", "by_python.o"]
        .map(|object| format!("{} -p main -o {object} input.go", compiler.display()));
    let script = format!(
        "{by_shell} && python3 -c 'import subprocess; subprocess.run(\"{by_python}\".split())' && \
         cmp by_shell.o by_python.o"
    );
    let mut command = Command::new(binary());
    command.args(["run", "--paged", "12M", "--swap", "ram:512M", "--report"]);
    command.arg(place.path("report.json")).args(["--", "sh", "-c", &script]);
    printed(&command.current_dir(place.path("")).output().unwrap());
    let report = Report::read(&place.path("report.json"));
    assert_eq!(report.number("/processes_by_handlers"), 2);
    report.expect_swapping();
}

/// Without GOROOT, the go command looks for its files beside /proc/self/exe.
#[test]
fn a_static_go_program_finds_its_own_file() {
    let (Some(root), Some(_)) = (go(&["env", "GOROOT"]), compiler()) else { return };
    let mut served = Command::new(binary());
    served.args(["run", "--memory", "64M", "--swap", "ram:256M", "--", "go", "env", "GOROOT"]);
    let output = served.env_remove("GOROOT").output().unwrap();
    assert_eq!(printed(&output), root);
    let summary = String::from_utf8_lossy(&output.stderr);
    assert!(summary.contains("1 process served by handler threads"), "{summary}");
}

/// Regression: Highwater was executed in place of the program, and is not in the new root.
#[test]
fn a_static_go_program_runs_in_another_root() {
    let Some(compiler) = compiler() else { return };
    let place = Place::beside_others();
    copy(&compiler, place.path("compile")).unwrap();
    let mut command = Command::new(binary());
    command.args(["run", "--memory", "64M", "--swap", "ram:256M", "--", "chroot"]);
    let output = command.arg(place.path("")).args(["/compile", "-V"]).output().unwrap();
    assert!(printed(&output).starts_with("compile version"), "{output:?}");
}

/// Go's compiler, if it is installed and this user may run it paged.
fn compiler() -> Option<PathBuf> {
    let compiler = PathBuf::from(go(&["env", "GOTOOLDIR"])?).join("compile");
    let mut command = Command::new(binary());
    command.args(["run", "--memory", "64M", "--swap", "ram:64M", "--"]).arg(&compiler).arg("-V");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let is_refused = output.status.code() == Some(2) && said.contains("Go program");
    if is_refused {
        skip_or_fail(&said);
    }
    (!is_refused).then_some(compiler)
}

/// Text of a Go program, for which the compiler needs about 0.1 MiB a function.
fn functions(count: usize) -> String {
    let function = |index: usize| {
        format!(
            "func f{index}(a, b int) int {{\n\tfor k, v := range map[int]int{{a: b, b: {index}}} \
             {{\n\t\tif k > v {{ a += k }} else {{ b -= v }}\n\t}}\n\treturn a * b\n}}\n"
        )
    };
    let calls = (0..count).map(|index| format!("\ts += f{index}(s, {index})\n"));
    once("package main\n".to_owned())
        .chain((0..count).map(function))
        .chain(once("func main() {\n\ts := 0\n".to_owned()))
        .chain(calls)
        .chain(once("\tprintln(s)\n}\n".to_owned()))
        .collect()
}

/// Runs the go command; returns its output. `None`: it is not installed.
fn go(arguments: &[&str]) -> Option<String> {
    let run = || Command::new("go").args(arguments).env_remove("GOROOT").output().unwrap();
    is_installed("go").then(|| printed(&run()))
}

/// The output of a command that succeeds.
fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}
