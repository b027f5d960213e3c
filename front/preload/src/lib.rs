//! The preload library: `highwater run` loads it into each process with LD_PRELOAD.
//!
//! ```text
//! malloc family --- malloc.rs --\   small blocks: slabs                    heap/
//!                                |   not for callers in caller.rs
//! getline --------- lines.rs      into blocks of malloc
//! mmap family ----- mapping.rs ---> Process -- Regions   which pages are whose     regions.rs
//!   protect.rs advise.rs remap.rs spans.rs |   \- ranges.rs inherit.rs dump.rs
//!   of files ------ files.rs               |-- Manager<Uffd>, Server
//! close family ---- descriptors.rs          \-- Reporter  statistics for the run   report.rs
//! fork ------------ fork.rs                                what is not paged       smaps.rs
//! brk, sbrk ------- brk.rs
//! exec, spawn ----- exec.rs       children are served, too                         environment.rs
//! setrlimit ------- credentials.rs    a limit of addresses is the program's          limits.rs
//! dlopen ---------- loading.rs    no second malloc
//! open, ioctl ----- pinning.rs    pages that devices may write to: pins.rs
//! ```
//! Blocks of malloc and anonymous private mappings come from one reserved range of addresses that
//! the manager pages; all other memory stays the kernel's. The manager starts at the first request
//! of 64 KiB, or once small requests add up to 1 MiB; in a program with a malloc of its own it
//! starts before main ([`begin`]).
//!
//! The manager's own memory ([`memory`]) comes from raw mappings. Signals of a thread are blocked
//! while it is inside the manager ([`signals`]): a handler might touch a page that its own thread
//! has locked. One process has one address space, so this crate, and no other, has global state:
//! [`process`], [`start`].

// A test program keeps the C library's functions: nothing here is exported under their names.
#![cfg_attr(test, allow(dead_code, reason = "the exported functions have no other callers"))]

mod advise;
mod balance;
mod begin;
mod behind;
mod blocks;
mod bpf;
mod bring;
mod brk;
mod by_number;
mod caller;
mod calls;
mod changes;
mod child_environment;
mod children;
mod code;
mod common;
mod cpu_lock;
mod credentials;
mod demand;
mod descriptors;
mod dump;
mod end;
mod environment;
mod errno;
mod exec;
mod file_maps;
mod file_trim;
mod files;
mod fork;
mod forking;
#[cfg(target_arch = "x86_64")]
mod gate;
mod go;
mod heap;
mod helper;
mod hints;
mod inherit;
mod later;
mod limits;
mod lines;
mod loading;
mod lock;
mod looks;
mod lost;
mod malloc;
mod mapped;
mod mapping;
mod memory;
mod native;
mod next;
#[cfg(not(target_arch = "x86_64"))]
mod no_gate;
mod others;
mod paged_stack;
mod pagemap;
mod pinning;
mod pins;
mod process;
mod program;
mod protect;
mod ranges;
mod regions;
mod registered;
mod remap;
mod remote;
mod report;
mod serve;
mod serving;
mod sharing;
mod signals;
mod smaps;
mod spans;
mod stack;
mod start;
#[cfg(target_arch = "x86_64")]
mod static_go;
mod streams;
mod swap_room;
mod swap_set;
mod target;
mod tier_windows;
mod tls;
mod units;
mod unpaged;
mod unserved;
mod watch;

#[cfg(not(target_arch = "x86_64"))]
use no_gate as gate;

/// By this symbol `highwater run` knows the library that HIGHWATER_PRELOAD names.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub static HIGHWATER_PRELOAD_LIBRARY: u8 = 1;
