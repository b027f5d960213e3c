//! Runs the work of an example on Highwater and on mmap(2), each in a process and a memory cgroup
//! of its own, with 1 and with 16 threads; the results must be equal.
//!
//! ```text
//! --compare [DIR] --> for each way: cgroup, this program --way W --threads T --dir DIR --group G
//! ```

use highwater::{Builder, FaultThreads, Memory};
use rustix::mm::{Advice, MapFlags, MsyncFlags, ProtFlags, madvise, mmap, msync, munmap};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr;
use std::slice;
use std::time::{Duration, Instant};

/// The pager of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Highwater,
    Mmap,
}

impl Way {
    const ALL: [Way; 2] = [Way::Mmap, Way::Highwater];

    fn name(self) -> &'static str {
        match self {
            Way::Highwater => "highwater",
            Way::Mmap => "mmap",
        }
    }
}

/// One run.
pub(crate) struct Run {
    pub(crate) way: Way,
    pub(crate) threads: usize,
    pub(crate) dir: PathBuf,
}

/// The time of a run, the CPU time of all its threads, and a digest of the result.
pub(crate) struct Done {
    took: Duration,
    cpu: Duration,
    digest: u64,
}

/// The start of a run.
pub(crate) struct Clock {
    start: Instant,
    cpu: Duration,
}

impl Clock {
    pub(crate) fn start() -> Clock {
        Clock { start: Instant::now(), cpu: cpu_time() }
    }

    pub(crate) fn done(self, digest: u64) -> Done {
        Done { took: self.start.elapsed(), cpu: cpu_time() - self.cpu, digest }
    }
}

/// The CPU time of this process.
fn cpu_time() -> Duration {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: room for the structure, for which zeros are valid values.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    let of = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    of(usage.ru_utime) + of(usage.ru_stime)
}

/// Settings of all examples: no system call gets a pointer into paged memory, so the faulting
/// thread may serve its own faults, which takes half the time.
pub(crate) fn builder() -> Builder {
    Memory::builder().faults(FaultThreads::InThread)
}

/// Whether the command line requests a comparison, or one run of a comparison.
pub(crate) fn is_asked() -> bool {
    std::env::args().nth(1).is_some_and(|first| ["--compare", "--way"].contains(&first.as_str()))
}

/// Compares, or does one run. All runs have `limit` MiB of memory.
///
/// # Errors
/// A process cannot be started, or a file cannot be used.
pub(crate) fn compare(limit: u64, run: impl FnOnce(&Run) -> Done) -> io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let after = |name: &str| {
        let place = args.iter().position(|arg| arg == name)?;
        args.get(place + 1).map(String::as_str)
    };
    match after("--way") {
        Some(way) => {
            if let Some(group) = after("--group") {
                fs::write(group, std::process::id().to_string())?;
            }
            let way = Way::ALL.into_iter().find(|known| known.name() == way).expect("a way");
            let threads = after("--threads").and_then(|text| text.parse().ok()).expect("a number");
            let dir = after("--dir").expect("a directory").into();
            let Done { took, cpu, digest } = run(&Run { way, threads, dir });
            println!("{:.2} {:.2} {digest}", took.as_secs_f64(), cpu.as_secs_f64());
            Ok(())
        }
        None => compare_all(limit, Path::new(after("--compare").unwrap_or("/var/tmp"))),
    }
}

fn compare_all(limit: u64, dir: &Path) -> io::Result<()> {
    let mut first = None;
    for threads in [1, 16] {
        for way in Way::ALL {
            let dir = tempfile::tempdir_in(dir)?;
            let group = Group::new(limit);
            let mut child = Command::new(std::env::current_exe()?);
            child.args(["--way", way.name(), "--threads", &threads.to_string(), "--dir"]);
            child.arg(dir.path());
            let note = match &group {
                Some(group) => {
                    child.arg("--group").arg(group.0.join("cgroup.procs"));
                    ""
                }
                None => "  (without a limit: no memory cgroup can be made)",
            };
            let output = child.stderr(std::process::Stdio::inherit()).output()?;
            let said = String::from_utf8_lossy(&output.stdout);
            let words: Vec<&str> = said.split_whitespace().collect();
            let [took, cpu, digest] = words[..] else {
                panic!("{} ended with {:?} and said {said:?}", way.name(), output.status)
            };
            println!(
                "{:9} {threads:2} threads {took:>7} s, CPU {cpu:>6} s, in {limit} MiB{note}",
                way.name()
            );
            let expected = first.get_or_insert_with(|| digest.to_owned());
            assert_eq!(digest, expected, "the results are equal");
        }
    }
    Ok(())
}

/// A memory cgroup, until it is dropped.
struct Group(PathBuf);

impl Group {
    /// `None`: the system does not permit one.
    fn new(mib: u64) -> Option<Group> {
        let kinds = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes")];
        let kinds = kinds.into_iter().chain([("/sys/fs/cgroup", "memory.max")]);
        kinds.into_iter().find_map(|(root, limit)| {
            let path = Path::new(root).join(format!("highwater-example-{}", std::process::id()));
            fs::create_dir(&path).ok()?;
            let group = Group(path);
            fs::write(group.0.join(limit), (mib << 20).to_string()).ok().map(|()| group)
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// A file as the kernel maps it, shared and for writing.
pub(crate) struct Mmap {
    address: *mut u8,
    len: usize,
}

// SAFETY: memory that all threads may use, borrowed as the slice that it dereferences to.
unsafe impl Send for Mmap {}
// SAFETY: as above.
unsafe impl Sync for Mmap {}

impl Mmap {
    /// Maps a file, after its pages were dropped from the page cache.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn open(path: &Path) -> io::Result<Mmap> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let len = file.metadata()?.len() as usize;
        forget(&file)?;
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping; no other process changes the file.
        let address = unsafe { mmap(ptr::null_mut(), len, access, flags, &file, 0)? };
        // SAFETY: the mapping just made. Without this advice each fault reads 128 KiB around its
        // page.
        unsafe { madvise(address, len, Advice::Random)? };
        Ok(Mmap { address: address.cast(), len })
    }

    /// Writes all changes.
    ///
    /// # Errors
    /// The system's.
    #[allow(dead_code, reason = "some examples only read")]
    pub(crate) fn sync(&self) -> io::Result<()> {
        // SAFETY: the mapping.
        unsafe { msync(self.address.cast(), self.len, MsyncFlags::SYNC) }.map_err(io::Error::from)
    }
}

/// Drops a file's pages from the page cache.
///
/// # Errors
/// The system's.
pub(crate) fn forget(file: &File) -> io::Result<()> {
    file.sync_all()?;
    Ok(rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?)
}

impl Deref for Mmap {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping.
        unsafe { slice::from_raw_parts(self.address, self.len) }
    }
}

impl DerefMut for Mmap {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping, borrowed for writing.
        unsafe { slice::from_raw_parts_mut(self.address, self.len) }
    }
}

impl Drop for Mmap {
    fn drop(&mut self) {
        // SAFETY: the mapping, which is not used any more. There is nowhere to report a failure.
        let _ = unsafe { munmap(self.address.cast(), self.len) };
    }
}
