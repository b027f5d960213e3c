//! How the shared library is linked.

fn main() {
    // Before version 1.0 a minor version may change the interface. The Makefile derives the name of
    // the file likewise.
    let [major, minor] =
        ["MAJOR", "MINOR"].map(|part| std::env::var(format!("CARGO_PKG_VERSION_{part}")));
    if let (Ok(major), Ok(minor)) = (major, minor) {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libhighwater.so.{major}.{minor}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
