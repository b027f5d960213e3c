//! Traverses a graph of four times the memory, breadth first. The graph is a mapped file, which has
//! the offset of the edges of each vertex, then all edges.
//!
//! `cargo run --release -p highwater --example traversal -- --compare [DIR]`: larger, compared with
//! mmap.

#[allow(clippy::duplicate_mod, reason = "the tests have several examples")]
#[path = "beside/mod.rs"]
mod beside;

use beside::{Clock, Done, Mmap, Run, Way};
use highwater::{Advice, FileAccess};
use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The size of a graph.
#[derive(Clone, Copy)]
struct Size {
    vertices: u32,
    /// The largest number of edges of a vertex; the average is half of it.
    degree: u32,
    memory_mib: u64,
}

/// 17 MiB of edges in 4 MiB of memory.
const SMALL: Size = Size { vertices: 12_000, degree: 750, memory_mib: 4 };
/// 130 MiB of edges in 32 MiB of memory.
const LARGE: Size = Size { vertices: 500_000, degree: 136, memory_mib: 32 };
/// The memory that the program takes besides the graph's pages, in MiB.
const BESIDE_MIB: u64 = 16;

/// A vertex that was not reached.
const FAR: u32 = u32::MAX;

/// The upper bits of Knuth's MMIX generator.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (((self.0 >> 32) * u64::from(end)) >> 32) as u32
    }
}

/// Calls `act` with the edges of each vertex. The edges depend only on the size.
fn each_vertex(size: Size, mut act: impl FnMut(&[u32])) {
    let (mut random, mut edges) = (Random(7), Vec::new());
    for _ in 0..size.vertices {
        edges.clear();
        edges.extend((0..random.below(size.degree)).map(|_| random.below(size.vertices)));
        act(&edges);
    }
}

fn write_graph(path: &Path, size: Size) -> std::io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let mut places = vec![u64::from(size.vertices + 1) * 8];
    each_vertex(size, |edges| places.push(places[places.len() - 1] + edges.len() as u64 * 4));
    places.iter().try_for_each(|place| file.write_all(&place.to_le_bytes()))?;
    let mut written = Ok(());
    each_vertex(size, |edges| {
        let mut all = edges.iter();
        written = std::mem::replace(&mut written, Ok(()))
            .and_then(|()| all.try_for_each(|edge| file.write_all(&edge.to_le_bytes())));
    });
    written?;
    beside::forget(&file.into_inner()?)
}

fn place(graph: &[u8], vertex: u32) -> usize {
    let at = vertex as usize * 8;
    u64::from_le_bytes(graph[at..at + 8].try_into().expect("8 bytes")) as usize
}

fn edges(graph: &[u8], vertex: u32) -> impl Iterator<Item = u32> + '_ {
    let bytes = &graph[place(graph, vertex)..place(graph, vertex + 1)];
    bytes.chunks_exact(4).map(|edge| u32::from_le_bytes(edge.try_into().expect("4 bytes")))
}

/// The distance of each vertex from the first vertex. Levels are expanded one after the other; the
/// vertices of a level are divided among the threads.
fn distances(graph: &[u8], vertices: u32, threads: usize) -> Vec<u32> {
    let distances: Vec<AtomicU32> = (0..vertices).map(|_| AtomicU32::new(FAR)).collect();
    distances[0].store(0, Relaxed);
    let (mut frontier, mut level) = (vec![0], 0);
    while !frontier.is_empty() {
        level += 1;
        let expand = |part: &[u32]| {
            let reached = part.iter().flat_map(|vertex| edges(graph, *vertex));
            let is_new = |edge: &u32| {
                distances[*edge as usize].compare_exchange(FAR, level, Relaxed, Relaxed).is_ok()
            };
            reached.filter(is_new).collect::<Vec<u32>>()
        };
        let part = frontier.len().div_ceil(threads);
        frontier = std::thread::scope(|scope| {
            let parts = frontier.chunks(part).map(|part| scope.spawn(|| expand(part)));
            let parts: Vec<_> = parts.collect();
            parts.into_iter().flat_map(|part| part.join().expect("no panic")).collect()
        });
    }
    distances.into_iter().map(AtomicU32::into_inner).collect()
}

/// Traverses a mapped graph.
fn traverse(size: Size, run: &Run) -> Result<(Done, Vec<u32>), Box<dyn Error>> {
    let path = run.dir.join("graph");
    write_graph(&path, size)?;
    let clock = Clock::start();
    let found = match run.way {
        Way::Mmap => distances(&Mmap::open(&path)?, size.vertices, run.threads),
        Way::Highwater => {
            let memory = format!("{}M", size.memory_mib);
            let memory = beside::builder().memory(memory).swap("ram:4M").build()?;
            let graph = memory.map_file(&path, FileAccess::Read)?;
            graph.advise(Advice::Random);
            distances(&graph, size.vertices, run.threads)
        }
    };
    let sum = |sum: u64, (at, far): (usize, &u32)| {
        sum.wrapping_mul(31).wrapping_add(u64::from(*far) ^ at as u64)
    };
    let digest = found.iter().enumerate().fold(0, sum);
    Ok((clock.done(digest), found))
}

/// Traverses, and checks the distances.
///
/// # Errors
/// Memory or the file is refused.
pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    if beside::is_asked() {
        let work = |run: &Run| traverse(LARGE, run).expect("traversed").0;
        return Ok(beside::compare(LARGE.memory_mib + BESIDE_MIB, work)?);
    }
    let dir = tempfile::tempdir()?;
    let run = Run { way: Way::Highwater, threads: 4, dir: dir.path().to_owned() };
    let (_, found) = traverse(SMALL, &run)?;
    let mut graph = Vec::new();
    each_vertex(SMALL, |edges| graph.push(edges.to_vec()));
    let bytes: usize = graph.iter().map(|edges| edges.len() * 4).sum();
    assert!(bytes as u64 > (4 * SMALL.memory_mib) << 20, "{bytes}: four times the memory");
    // Edges lead to the same level, to the next level or to lower levels. Each vertex of a level
    // has an edge from the level before.
    assert_eq!(found[0], 0);
    let mut reached = vec![false; found.len()];
    for (from, edges) in graph.iter().enumerate().filter(|(from, _)| found[*from] != FAR) {
        for to in edges.iter().map(|to| *to as usize) {
            assert!(found[to] <= found[from] + 1, "{from} to {to}");
            reached[to] |= found[to] == found[from] + 1;
        }
    }
    let is_right = |(at, far): (usize, &u32)| at == 0 || reached[at] == (*far != FAR);
    assert!(found.iter().enumerate().all(is_right), "by a shortest way");
    let count = found.iter().filter(|far| **far != FAR).count();
    println!("{count} of {} vertices reached", SMALL.vertices);
    Ok(())
}
