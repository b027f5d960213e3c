//! A B-tree in a file larger than memory, with a write-ahead log.
//!
//! ```text
//! insert -- changed: copies of nodes --commit--> log: images of them, fdatasync --> mapped file
//!                                                  |- checkpoint: sync the file, empty the log
//!                                                  '- open: the images of whole commits again
//! ```
//! The mapping may write a page to the file at any time, so a page of the mapping changes only
//! after its image is durable in the log. After a crash the file has old and new pages, whole or
//! torn; the log has an image of each page that has changed since the last checkpoint.
//!
//! `cargo run --release -p highwater --example btree -- --compare [DIR]`: larger, compared with
//! mmap.

#[allow(clippy::duplicate_mod, reason = "the tests have several examples")]
#[path = "beside/mod.rs"]
mod beside;

use beside::{Clock, Done, Mmap, Run, Way};
use highwater::{Advice, FileAccess, FileMapping, Memory};
use std::collections::BTreeMap;
use std::error::Error;
use std::fs::{File, OpenOptions};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::RwLock;

const PAGE: usize = 4096;
/// Entries of a node: 16 bytes each, after a header of 16 bytes.
const ENTRIES: usize = PAGE / 16 - 1;
/// The number of nodes by which the file grows.
const STEP: usize = 1024;
/// The log is emptied at this length.
const LOG_MAX: u64 = 16 << 20;
/// Page 0: the root, and the number of pages in use.
const META: u32 = 0;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// A page: words 0 and 1 are a header; then each key with its value, or with its child node.
#[derive(Clone)]
struct Node([u64; PAGE / 8]);

impl Node {
    fn new(is_leaf: bool) -> Node {
        let mut node = Node([0; PAGE / 8]);
        node.0[0] = u64::from(is_leaf);
        node
    }

    fn from_bytes(bytes: &[u8]) -> Node {
        let mut words = bytes.chunks_exact(8).map(|word| word.try_into().expect("8 bytes"));
        Node(std::array::from_fn(|_| u64::from_le_bytes(words.next().expect("a page"))))
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn is_leaf(&self) -> bool {
        self.0[0] == 1
    }

    fn len(&self) -> usize {
        self.0[1] as usize
    }

    fn entry(&self, index: usize) -> (u64, u64) {
        (self.0[2 + index * 2], self.0[3 + index * 2])
    }

    fn entries(&self) -> Vec<(u64, u64)> {
        (0..self.len()).map(|index| self.entry(index)).collect()
    }

    fn set_entries(&mut self, entries: &[(u64, u64)]) {
        self.0[1] = entries.len() as u64;
        for (index, (key, value)) in entries.iter().enumerate() {
            (self.0[2 + index * 2], self.0[3 + index * 2]) = (*key, *value);
        }
    }

    /// The number of entries at the start whose keys satisfy `is_before`.
    fn before(&self, is_before: impl Fn(u64) -> bool) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = (low + high) / 2;
            if is_before(self.entry(middle).0) { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// The child for a key: the last child whose own key is not above that key.
    fn child(&self, key: u64) -> u32 {
        let index = self.before(|of| of <= key).max(1) - 1;
        self.entry(index).1 as u32
    }

    /// Inserts an entry, or replaces its value. If the node has no room for the entry, splits the
    /// node and returns the upper half.
    fn insert(&mut self, key: u64, value: u64) -> Option<Node> {
        let mut entries = self.entries();
        let at = self.before(|of| of < key);
        match entries.get_mut(at) {
            Some(entry) if entry.0 == key => entry.1 = value,
            _ => entries.insert(at, (key, value)),
        }
        if entries.len() <= ENTRIES {
            self.set_entries(&entries);
            return None;
        }
        let upper = entries.split_off(entries.len() / 2);
        self.set_entries(&entries);
        let mut other = Node::new(self.is_leaf());
        other.set_entries(&upper);
        Some(other)
    }
}

/// The mapped file.
enum Store {
    Highwater(FileMapping),
    Mmap(Mmap),
}

impl Store {
    fn bytes(&self) -> &[u8] {
        match self {
            Store::Highwater(file) => file,
            Store::Mmap(file) => file,
        }
    }

    fn put(&mut self, page: u32, image: &[u8]) -> Result<()> {
        let at = page as usize * PAGE;
        match self {
            Store::Highwater(file) => file.write_at(at, image)?,
            Store::Mmap(file) => file[at..at + PAGE].copy_from_slice(image),
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        match self {
            Store::Highwater(file) => Ok(file.sync()?),
            Store::Mmap(file) => Ok(file.sync()?),
        }
    }

    /// Makes the file long enough for a page. A file mapped by mmap is long enough from the start.
    fn reach(&mut self, page: u32) -> Result<()> {
        let needed = (page as usize + 1) * PAGE;
        match self {
            Store::Highwater(file) if file.len() < needed => {
                Ok(file.resize((page as usize / STEP + 1) * STEP * PAGE)?)
            }
            _ => Ok(()),
        }
    }
}

/// Where a commit may be cut off, in tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Half of a commit is in the log.
    Logging,
    /// The whole commit is in the log, and durable.
    Logged,
    /// Half of the pages are in the mapping.
    Applying,
    /// The file is written, but the log is not emptied yet.
    Checkpoint,
}

/// The tree.
pub(crate) struct Tree {
    store: Store,
    log: File,
    /// Nodes that the next commit writes.
    changed: BTreeMap<u32, Node>,
    at_step: Box<dyn FnMut(Step) + Send + Sync>,
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

impl Tree {
    /// Opens the file with its log, or makes a new file.
    ///
    /// # Errors
    /// The file or its log cannot be read or written.
    pub(crate) fn open(memory: &Memory, dir: &Path) -> Result<Tree> {
        let path = dir.join("tree");
        let exists = path.exists();
        let file = match exists {
            true => memory.map_file(&path, FileAccess::ReadWrite)?,
            false => memory.create_file(&path, STEP * PAGE)?,
        };
        file.advise(Advice::Random);
        Tree::over(Store::Highwater(file), dir)
    }

    fn over(store: Store, dir: &Path) -> Result<Tree> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let log = options.open(dir.join("log"))?;
        let mut tree = Tree { store, log, changed: BTreeMap::new(), at_step: Box::new(|_| ()) };
        tree.replay()?;
        if tree.node(META).0[1] == 0 {
            let mut meta = Node::new(false);
            (meta.0[0], meta.0[1]) = (1, 2);
            tree.changed.extend([(META, meta), (1, Node::new(true))]);
            tree.commit()?;
        }
        Ok(tree)
    }

    /// From now on, calls `at_step` at each step of a commit.
    #[allow(dead_code, reason = "tests of crashes call it")]
    pub(crate) fn on_steps(&mut self, at_step: impl FnMut(Step) + Send + Sync + 'static) {
        self.at_step = Box::new(at_step);
    }

    fn node(&self, page: u32) -> Node {
        let stored = || {
            let at = page as usize * PAGE;
            self.store.bytes().get(at..at + PAGE).map_or_else(|| Node::new(false), Node::from_bytes)
        };
        self.changed.get(&page).cloned().unwrap_or_else(stored)
    }

    /// The value of a key.
    pub(crate) fn get(&self, key: u64) -> Option<u64> {
        let mut node = self.node(self.node(META).0[0] as u32);
        while !node.is_leaf() {
            node = self.node(node.child(key));
        }
        let at = node.before(|of| of < key);
        (at < node.len() && node.entry(at).0 == key).then(|| node.entry(at).1)
    }

    /// All entries, in the order of keys.
    pub(crate) fn entries(&self) -> Vec<(u64, u64)> {
        let (mut found, mut open) = (Vec::new(), vec![self.node(META).0[0] as u32]);
        while let Some(page) = open.pop() {
            let node = self.node(page);
            match node.is_leaf() {
                true => found.extend(node.entries()),
                false => open.extend(node.entries().iter().rev().map(|entry| entry.1 as u32)),
            }
        }
        found
    }

    fn add(&mut self, node: Node) -> u32 {
        let mut meta = self.node(META);
        let page = meta.0[1] as u32;
        meta.0[1] += 1;
        self.changed.extend([(META, meta), (page, node)]);
        page
    }

    /// Inserts a key, or changes its value. The change is in memory alone until the next
    /// [`Tree::commit`].
    pub(crate) fn insert(&mut self, key: u64, value: u64) {
        let root = self.node(META).0[0] as u32;
        let mut path = vec![root];
        while let inner = self.node(path[path.len() - 1])
            && !inner.is_leaf()
        {
            path.push(inner.child(key));
        }
        let (mut key, mut value) = (key, value);
        while let Some(page) = path.pop() {
            let mut node = self.node(page);
            let upper = node.insert(key, value);
            self.changed.insert(page, node);
            let Some(upper) = upper else { return };
            key = upper.entry(0).0;
            value = u64::from(self.add(upper));
            if path.is_empty() {
                let mut above = Node::new(false);
                // The leftmost child of each level has all keys below that of the second child.
                above.set_entries(&[(0, u64::from(page)), (key, value)]);
                let above = self.add(above);
                let mut meta = self.node(META);
                meta.0[0] = u64::from(above);
                self.changed.insert(META, meta);
                return;
            }
        }
    }

    /// Makes all changes durable: first in the log, then in the mapping.
    ///
    /// # Errors
    /// The log or the file cannot be written.
    pub(crate) fn commit(&mut self) -> Result<()> {
        let mut images = Vec::new();
        for (page, node) in &self.changed {
            images.extend_from_slice(&u64::from(*page).to_le_bytes());
            images.extend_from_slice(&node.bytes());
        }
        let head = [self.changed.len() as u64, hash(&images)].map(u64::to_le_bytes).concat();
        self.log.write_all(&head)?;
        let half = images.len() / 2;
        self.log.write_all(&images[..half])?;
        (self.at_step)(Step::Logging);
        self.log.write_all(&images[half..])?;
        self.log.sync_data()?;
        (self.at_step)(Step::Logged);
        let changed = std::mem::take(&mut self.changed);
        for (count, (page, node)) in changed.iter().enumerate() {
            if count == changed.len() / 2 {
                (self.at_step)(Step::Applying);
            }
            self.store.reach(*page)?;
            self.store.put(*page, &node.bytes())?;
        }
        if self.log.stream_position()? > LOG_MAX { self.checkpoint() } else { Ok(()) }
    }

    /// Writes the file, and empties the log.
    ///
    /// # Errors
    /// The log or the file cannot be written.
    pub(crate) fn checkpoint(&mut self) -> Result<()> {
        self.store.sync()?;
        (self.at_step)(Step::Checkpoint);
        self.log.set_len(0)?;
        self.log.rewind()?;
        Ok(self.log.sync_data()?)
    }

    /// Puts the images of all whole commits of the log into the mapping.
    fn replay(&mut self) -> Result<()> {
        self.log.rewind()?;
        let mut log = io::BufReader::new(self.log.try_clone()?);
        let mut whole = 0;
        while let Some(images) = next_commit(&mut log)? {
            whole += 16 + images.len() as u64;
            for image in images.chunks_exact(8 + PAGE) {
                let page = u64::from_le_bytes(image[..8].try_into().expect("8 bytes")) as u32;
                self.store.reach(page)?;
                self.store.put(page, &image[8..])?;
            }
        }
        // Anything after the whole commits is a commit that was cut off.
        self.log.set_len(whole)?;
        self.log.seek(SeekFrom::Start(whole))?;
        Ok(())
    }
}

/// The images of the next commit; `None` if it is not whole.
fn next_commit(log: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut head = [0; 16];
    if !fill(log, &mut head)? {
        return Ok(None);
    }
    let [count, sum] = [0, 8].map(|at| u64::from_le_bytes(head[at..at + 8].try_into().expect("8")));
    let len = (count as usize).saturating_mul(8 + PAGE).min(1 << 32);
    let mut images = Vec::new();
    log.take(len as u64).read_to_end(&mut images)?;
    Ok((images.len() == len && hash(&images) == sum).then_some(images))
}

/// Fills a buffer; `false` at the end.
fn fill(from: &mut impl Read, to: &mut [u8]) -> io::Result<bool> {
    match from.read_exact(to) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// The key of an index. Each index has a different key, and the order of the keys looks random.
pub(crate) fn key(index: u64) -> u64 {
    index.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Inserts the keys of some indices, and commits.
///
/// # Errors
/// Those of [`Tree::commit`].
pub(crate) fn load(tree: &mut Tree, indices: Range<u64>) -> Result<()> {
    indices.for_each(|index| tree.insert(key(index), index));
    tree.commit()
}

/// The keys of a comparison: a file of some 150 MiB, in 32 MiB of memory.
const KEYS: u64 = 6_000_000;
const LOOKUPS: u64 = 120_000;
const MEMORY_MIB: u64 = 32;
/// The memory that the program takes besides, in MiB.
const BESIDE_MIB: u64 = 32;

/// Threads look up random keys, while another thread commits changes.
fn work(run: &Run) -> Result<Done> {
    let memory = || beside::builder().memory(format!("{MEMORY_MIB}M")).swap("ram:4M").build();
    load_sorted(&memory()?, &run.dir)?;
    let path = run.dir.join("tree");
    let store = match run.way {
        Way::Mmap => Store::Mmap(Mmap::open(&path)?),
        Way::Highwater => {
            let file = memory()?.map_file(&path, FileAccess::ReadWrite)?;
            file.advise(Advice::Random);
            Store::Highwater(file)
        }
    };
    let clock = Clock::start();
    let tree = RwLock::new(Tree::over(store, &run.dir)?);
    let shares = LOOKUPS / run.threads as u64;
    let digest = std::thread::scope(|scope| -> Result<u64> {
        let lookers = (0..run.threads as u64).map(|thread| {
            let tree = &tree;
            scope.spawn(move || {
                let find = |step: u64| {
                    let index = (thread * shares + step) * 7919 % KEYS;
                    let tree = tree.read().expect("no panic");
                    tree.get(index * 3).map_or(0, |value| value & 0xffff_ffff)
                };
                (0..shares).map(find).fold(0u64, u64::wrapping_add)
            })
        });
        let lookers: Vec<_> = lookers.collect();
        for commit in 0..20u64 {
            let mut tree = tree.write().expect("no panic");
            for index in 0..50 {
                let index = (commit * 50 + index) * 104_729 % KEYS;
                tree.insert(index * 3, index | 1 << 32);
            }
            tree.commit()?;
        }
        let sums = lookers.into_iter().map(|looker| looker.join().expect("no panic"));
        Ok(sums.fold(0, u64::wrapping_add))
    })?;
    tree.into_inner()?.checkpoint()?;
    Ok(clock.done(digest))
}

/// Writes a file with the keys 0, 3, 6, ..., in order.
fn load_sorted(memory: &Memory, dir: &Path) -> Result<()> {
    let mut tree = Tree::open(memory, dir)?;
    for index in 0..KEYS {
        tree.insert(index * 3, index);
        if index % 20_000 == 0 {
            tree.commit()?;
        }
    }
    tree.commit()?;
    tree.checkpoint()
}

/// Loads a tree that is larger than the memory, and checks it.
///
/// # Errors
/// Memory or the file is refused.
pub(crate) fn main() -> Result<()> {
    if beside::is_asked() {
        let limit = MEMORY_MIB + BESIDE_MIB;
        return Ok(beside::compare(limit, |run| work(run).expect("files and memory"))?);
    }
    let (dir, keys, part) = (tempfile::tempdir()?, 280_000, 40_000);
    let memory = beside::builder().memory("4M").swap("ram:4M").build()?;
    let mut tree = Tree::open(&memory, dir.path())?;
    (0..keys).step_by(part as usize).try_for_each(|at| load(&mut tree, at..at + part))?;
    tree.checkpoint()?;
    let bytes = tree.store.bytes().len();
    assert!(bytes > 4 << 20, "{bytes}: more than the memory");
    let entries = tree.entries();
    assert!(entries.is_sorted() && entries.len() as u64 == keys);
    assert!(entries.iter().all(|(found, value)| *found == key(*value)));
    assert_eq!((tree.get(key(5)), tree.get(3)), (Some(5), None));
    println!("{keys} keys in {} MiB", bytes >> 20);
    Ok(())
}
