//! Programs with unusual libraries, mallocs and environments, and memory that is not paged.

use crate::common::{compile, highwater};
use crate::place::{Limits, Mode, Place, program};
use crate::report::Report;
use crate::run::Program;
use highwater_platform::testing::skip_or_fail;
use std::path::Path;
use std::process::Command;

const MIB: u64 = 1 << 20;
const DIRECTORY: &str = "/usr/lib/x86_64-linux-gnu";
/// Popular mallocs. Each also exports `__libc_malloc`, or part of its family.
const MALLOCS: [&str; 3] = ["libmimalloc.so.2", "libjemalloc.so.2", "libtcmalloc_minimal.so.4"];

/// The program's own mapping functions make system calls by number. The library makes such calls by
/// its own functions, and not by the program's functions of the same name.
#[test]
fn a_program_that_defines_mmap_is_paged() {
    let place = Place::beside_others();
    let path = place.compile("own_mmap", "own_mmap", &["-rdynamic"]);
    let program = program(path, &[]);
    let unlimited = place.run(&program).expect_success("own mmap");
    place.compare_output("own mmap", &unlimited, &Limits::of(8 * MIB), &program).expect_swapping();
}

/// Runs a section of `strangers` with 12 MiB: the same output as without Highwater.
fn section(place: &Place, name: &str) -> Report {
    let program = place.c_program("strangers", &[name]);
    let unlimited = place.run(&program).expect_success(name);
    place.compare_output(name, &unlimited, &Limits::of(12 * MIB), &program)
}

/// PHP opens its extensions with RTLD_DEEPBIND: they must call this library's free, and dlopen must
/// resolve names relative to the extension.
#[test]
fn deep_bound_libraries_free_blocks_of_this_malloc() {
    let place = Place::beside_others();
    std::fs::create_dir(place.path("lib")).expect("a directory");
    let outer = "#include <dlfcn.h>\n#include <stdlib.h>\n\
                 void give(void *block) { free(block); }\n\
                 int beside(void) { void *inner = dlopen(\"inner.so\", RTLD_NOW);\n\
                 return inner ? ((int (*)(void))dlsym(inner, \"answer\"))() : -1; }\n";
    let shared = ["-shared", "-fPIC", "-Wl,-rpath,$ORIGIN"];
    compile(outer, &place.path("lib/outer.so"), &shared);
    compile("int answer(void) { return 42; }\n", &place.path("lib/inner.so"), &shared);
    section(&place, "opened");
}

#[test]
fn php_with_extensions() {
    let script = "$a = []; for ($i = 0; $i < 60000; $i++) $a[] = mb_strtoupper(\"v$i\") . md5($i); \
                  $d = new DOMDocument(); $r = $d->appendChild($d->createElement('r')); \
                  for ($i = 0; $i < 5000; $i++) $r->appendChild($d->createElement('e', \"t$i\")); \
                  $x = simplexml_load_string($d->saveXML()); \
                  echo count($x->e), md5(implode(',', $a)), \"\\n\";";
    let modules = Command::new("php").arg("-m").output();
    let has = |module: &str, all: &str| all.lines().any(|line| line.eq_ignore_ascii_case(module));
    let modules = modules.map_or(String::new(), |it| String::from_utf8_lossy(&it.stdout).into());
    if !["mbstring", "dom", "simplexml"].iter().all(|module| has(module, &modules)) {
        return skip_or_fail("no php with mbstring, dom and simplexml");
    }
    let (place, program) = (Place::beside_others(), program("php", &["-r", script]));
    let unlimited = place.run(&program).expect_success("php");
    let report = place.compare_output("php", &unlimited, &Limits::of(4 * MIB), &program);
    assert!(report.number("/paged_peak_bytes") > 2 * MIB, "the document is paged");
}

/// The command line of a program whose LD_PRELOAD names a malloc before this library.
fn before(malloc: &str, inner: &Program) -> Program {
    let script = format!("export LD_PRELOAD={malloc}:$LD_PRELOAD; exec \"$0\" \"$@\"");
    [&program("sh", &["-c", &script])[..], inner].concat()
}

#[test]
fn other_mallocs_can_be_preloaded() {
    for name in MALLOCS {
        let malloc = format!("{DIRECTORY}/{name}");
        if !Path::new(&malloc).exists() {
            skip_or_fail(format_args!("no {malloc}"));
            continue;
        }
        let place = Place::beside_others();
        let plain = place.c_program("strangers", &["mallocs"]);
        let unlimited = place.run(&plain).expect_success("mallocs");
        let linked = place.compile("strangers", "linked", &["-Wl,--no-as-needed", &malloc]);
        let behind = format!("LD_PRELOAD=$LD_PRELOAD:{malloc}; exec \"$0\" \"$@\"");
        let behind = [&program("sh", &["-c", &behind])[..], &plain].concat();
        let instead = format!("LD_PRELOAD={malloc}");
        let instead = [&program("env", &[&instead])[..], &plain].concat();
        for (way, program) in [
            ("linked", program(linked, &["mallocs"])),
            ("behind", behind),
            ("instead", instead),
            ("before", before(&malloc, &plain)),
        ] {
            let what = format!("{name}, {way}");
            let limits = Limits::of(12 * MIB);
            let report = place.compare_output(&what, &unlimited, &limits, &program);
            report.expect_swapping();
        }
    }
}

/// Regression: Python and Node were taken for programs with a malloc of their own. As they are not
/// position-independent, they contain an address of malloc: that of a jump to this library's.
#[test]
fn the_address_of_malloc_in_a_program_is_no_malloc_of_its_own() {
    let place = Place::beside_others();
    let plain = place.compile("addresses", "addresses", &["-no-pie", "-fno-pic"]);
    let plain = program(plain, &["32"]);
    let own = place.c_program("own_malloc", &["32"]);
    let replaced = before(&format!("{DIRECTORY}/{}", MALLOCS[1]), &plain);
    for (what, program, has_own) in
        [("jump", &plain, false), ("own", &own, true), ("preloaded", &replaced, true)]
    {
        let unlimited = place.run(program).expect_success(what);
        let limits = Limits { mode: Some(Mode::InThread), ..Limits::of(12 * MIB) };
        let report = place.compare_output(what, &unlimited, &limits, program);
        let by_handlers = if has_own { report.number("/processes") } else { 0 };
        assert_eq!(report.number("/processes_by_handlers"), by_handlers, "{what}");
    }
}

/// 20 MB in total, from threads that allocate 20 KB once.
#[test]
fn small_allocations_of_many_threads_are_counted() {
    let report = section(&Place::beside_others(), "many");
    let paged = report.number("/vmstat/pgzero") * 4096;
    assert!(paged > 16 * MIB, "{paged} bytes were paged");
}

/// As in Free Pascal. Regression: the manager's threads inherited the program's floating-point
/// modes, and their own arithmetic ended them.
#[test]
fn floating_point_exceptions_may_trap() {
    let place = Place::beside_others();
    let floats = floats(&place);
    expect_floats(&["run", "--memory", "16M", "--", &floats]);
}

/// Regression: the file of the library's statistics exceeded the program's limit: it ended by
/// SIGXFSZ.
#[test]
fn a_program_may_limit_its_files() {
    let place = Place::beside_others();
    let limited = format!("ulimit -f 1; exec {}", floats(&place));
    for swap in ["ram:64M", "dir:/var/tmp:64M"] {
        expect_floats(&["run", "--memory", "16M", "--swap", swap, "--", "sh", "-c", &limited]);
    }
}

fn floats(place: &Place) -> String {
    let options = ["-D_GNU_SOURCE", "-Wl,--no-as-needed", "-lm"];
    place.compile("floats", "floats", &options).display().to_string()
}

fn expect_floats(arguments: &[&str]) {
    let output = highwater().args(arguments).output().expect("a run");
    let [text, errors] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    assert_eq!(text, "49152 pages, exceptions 0x3d trap\n", "{errors}");
    assert!(output.status.success(), "{errors}");
}

#[test]
fn the_break_of_a_program_is_paged() {
    section(&Place::beside_others(), "breaks").expect_swapping();
}

#[test]
fn memory_that_is_not_paged_is_shown_by_kind() {
    let place = Place::beside_others();
    let report = section(&place, "kinds");
    assert_eq!(report.number("/processes"), 0, "nothing was to be paged");
    let [shared, executable] = ["shared", "executable"]
        .map(|kind| report.number(&format!("/peak_resident/elsewhere/{kind}_bytes")));
    assert!(shared >= 49 * MIB && executable >= 20 * MIB, "{shared}, {executable}");
    let mut command = highwater();
    command.args(["run", "--paged", "12M", "--swap", "ram:64M", "--"]);
    let run = command.args(place.c_program("strangers", &["kinds"])).output().expect("a run");
    let errors = String::from_utf8_lossy(&run.stderr);
    let kinds = errors.lines().last().unwrap_or_default();
    assert!(kinds.contains("shared memory 49 MiB, generated code 20 MiB"), "{errors}");
    let first = errors.lines().next().unwrap_or_default();
    assert!(first.contains("kinds that cannot be paged"), "{errors}");
    assert!(first.contains("above the budget of 12 MiB"), "{errors}");
}

/// The manager's memory does not grow with the number of mappings.
#[test]
fn the_manager_does_not_grow_with_mappings() {
    let report = section(&Place::beside_others(), "mappings");
    let manager = report.number("/peak_resident/manager_bytes");
    assert!(manager < 8 * MIB, "{manager} bytes");
}

/// Ten ways to start a program, all of which are served.
#[test]
fn children_of_a_program_that_cleared_its_environment_are_served() {
    let report = section(&Place::beside_others(), "cleared");
    assert!(report.number("/processes") >= 10, "{} processes", report.number("/processes"));
    let large = report.number("/malloc/at_most/large_bytes");
    assert!(large >= 80 * MIB, "{large} bytes of blocks that were asked for");
}

#[test]
fn variables_that_the_user_unsets_stay_unset() {
    let place = Place::beside_others();
    let inner = place.c_program("strangers", &["child", "x"]);
    for variable in ["LD_PRELOAD", "HIGHWATER_MEMORY"] {
        let outer = [&program("env", &["-u", variable])[..], &inner].concat();
        place.run_within(&Limits::of(12 * MIB), &outer).expect_success(variable);
        assert_eq!(place.report().number("/processes"), 0, "without {variable}");
    }
}

/// `highwater run` refuses a program with a sanitizer; as a child, such a program runs unserved.
#[test]
fn programs_with_sanitizers_are_not_served() {
    let place = Place::beside_others();
    let source = "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n\
                  int main(void) { char *p = malloc(4 << 20); memset(p, 1, 4 << 20);\n\
                  printf(\"%d\\n\", p[77]); free(p); }\n";
    for (option, name) in [
        ("-fsanitize=address", "AddressSanitizer"),
        ("-fsanitize=thread", "ThreadSanitizer"),
        ("-fsanitize=leak", "LeakSanitizer"),
    ] {
        let path = place.path(name);
        compile(source, &path, &["-O1", option]);
        let path = path.display();
        let alone = program(path.to_string(), &[]);
        let reason = format!("'{path}' is built with {name}, which has a malloc of its own");
        let refused = place.run_within(&Limits::of(12 * MIB), &alone);
        assert_eq!(refused.status.code(), Some(2), "{name}: {}", refused.errors);
        assert!(refused.errors.contains(&reason), "{}", refused.errors);
        let child = program("sh", &["-c", &format!("{path}; {path}; echo $?")]);
        let run = place.run_within(&Limits::of(12 * MIB), &child).expect_success(name);
        assert_eq!(run.text(), "1\n1\n0\n", "{name}: {}", run.errors);
        assert!(run.errors.starts_with(&format!("highwater: {reason}: it is not paged\n")));
        assert_eq!(run.errors.lines().count(), 2, "{}", run.errors);
    }
}

/// musl's dynamic linker loads the library as well, but lacks functions that the library needs.
/// Regression: this ended the program. In this test, musl's linker is a link to the GNU C
/// library's.
#[test]
fn children_that_are_linked_with_musl_run_unserved() {
    let place = Place::beside_others();
    let (linker, starter) = (place.path("ld-musl-x86_64.so.1"), place.path("starter"));
    let own = match cfg!(target_arch = "aarch64") {
        true => "/lib/ld-linux-aarch64.so.1",
        false => "/lib64/ld-linux-x86-64.so.2",
    };
    std::os::unix::fs::symlink(own, &linker).expect("a link");
    let source = "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n\
                  int main(void) { char *p = malloc(4 << 20); memset(p, 1, 4 << 20);\n\
                  printf(\"%d [%s]\\n\", p[77], getenv(\"LD_PRELOAD\")); free(p); }\n";
    let path = place.path("musl");
    compile(source, &path, &["-O1", &format!("-Wl,--dynamic-linker={}", linker.display())]);
    let source = "#include <spawn.h>\n#include <sys/wait.h>\n#include <unistd.h>\n\
                  extern char **environ;\n\
                  int main(int count, char **line) { pid_t child; (void)count;\n\
                  if (posix_spawn(&child, line[1], 0, 0, line + 1, environ)) return 1;\n\
                  waitpid(child, 0, 0);\n\
                  if ((child = vfork()) == 0) { execv(line[1], line + 1); _exit(1); }\n\
                  waitpid(child, 0, 0); return 0; }\n";
    compile(source, &starter, &["-O1"]);
    let path = path.display().to_string();
    let limits = Limits::of(12 * MIB);
    let refused = place.run_within(&limits, &program(&path, &[]));
    assert_eq!(refused.status.code(), Some(2), "{}", refused.errors);
    assert!(refused.errors.contains(&format!("'{path}' is linked with musl")));
    let line = format!(
        "highwater: '{path}' is linked with musl, and not with the GNU C library: \
                        it is not paged\n"
    );
    let script = format!("{path}; {path}");
    for outer in [program("sh", &["-c", &script]), program(starter, &[&path])] {
        let run = place.run_within(&limits, &outer).expect_success("musl");
        assert_eq!((run.text(), run.errors), ("1 []\n1 []\n".to_owned(), line.repeat(2)));
    }
    // Start it by execvp, which searches PATH.
    let directories = format!("PATH=/nonexistent:{}:/usr/bin", place.path("").display());
    let by_name = program("env", &[&directories, "musl"]);
    let run = place.run_within(&limits, &by_name).expect_success("by name");
    assert_eq!((run.text(), run.errors), ("1 []\n".to_owned(), line.replace(&path, "musl")));
}
