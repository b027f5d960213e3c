//! How the library is linked.

fn main() {
    // Its fork handlers must be registered before those of any other library: the first to run in a
    // child is to find memory as it was for the others. See fork.rs.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    println!("cargo:rerun-if-changed=build.rs");
}
