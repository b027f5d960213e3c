//! The library inside the program: `highwater run` puts it there with LD_PRELOAD.
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
//! dlopen ---------- loading.rs    no second malloc
//! ```
//! Blocks of malloc and anonymous private mappings come from one reserved range of addresses that
//! the manager pages; everything else goes where it always went. Nothing is started before the
//! first request of 64 KiB, or small ones of 1 MiB in all; but for programs that bring a malloc of
//! their own ([`begin`]).
//!
//! The manager's own memory ([`memory`]) comes straight from the kernel. While a thread is inside
//! the manager its signals are blocked ([`signals`]): a handler might touch a page that its own
//! thread has locked. One process has one address space, so here, and only here, state is global:
//! [`process`].

// A test program keeps the C library's functions: nothing here is exported under their names.
#![cfg_attr(test, allow(dead_code, reason = "the exported functions have no other callers"))]

mod advise;
mod begin;
mod brk;
mod caller;
mod descriptors;
mod dump;
mod environment;
mod exec;
mod files;
mod fork;
mod heap;
mod helper;
mod inherit;
mod lines;
mod loading;
mod malloc;
mod mapping;
mod memory;
mod native;
mod process;
mod protect;
mod ranges;
mod regions;
mod remap;
mod report;
mod signals;
mod smaps;
mod spans;
mod target;
mod tls;
mod unserved;
