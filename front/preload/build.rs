//! How the library is linked.

use std::path::Path;
use std::process::Command;

fn main() {
    // Its fork handlers must be registered before those of any other library: the first to run in a
    // child is to find memory as it was for the others. See fork.rs.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    link_unwinder();
    println!("cargo:rerun-if-changed=build.rs");
}

/// Links the unwinder into the library, where the compiler of this machine has one and builds for
/// this machine. Otherwise each program that does not use libgcc_s itself loads it for Highwater,
/// which takes 0.1 ms.
fn link_unwinder() {
    const ARCHIVE: &str = "libgcc_eh.a";
    let of = |variable| std::env::var(variable).ok();
    if of("HOST") != of("TARGET") {
        return;
    }
    let found = Command::new("cc").arg(format!("-print-file-name={ARCHIVE}")).output();
    let Some(path) = found.ok().and_then(|found| String::from_utf8(found.stdout).ok()) else {
        return;
    };
    // Without one, the compiler prints the bare name.
    if let Some(dir) = Path::new(path.trim()).parent().filter(|dir| dir.is_absolute()) {
        println!("cargo:rustc-link-search=native={}", dir.display());
        // Whole: the standard library, which needs it, is linked after it.
        println!("cargo:rustc-link-lib=static:+whole-archive=gcc_eh");
    }
}
