//! The settings of a memory, checked before anything starts.

use crate::budget::within;
use crate::engine::{Engine, Plan};
use crate::error::Error;
use crate::memory::Memory;
use highwater_devices::{Area, Seal};
use highwater_mm::Config;
use highwater_mm::config::KswapdThreads;
use highwater_session::{FaultThreads, LargePages, default_memory, default_swap, host_memory};
use highwater_units::Bytes;

/// Makes a [`Memory`]; see [`Memory::builder`]. Sizes are text with a binary unit (`256M`,
/// `1.5 GiB`) or numbers of bytes.
#[derive(Clone, Debug, Default)]
#[must_use = "nothing happens before `build`"]
pub struct Builder {
    memory: Option<String>,
    memory_max: Option<String>,
    swap: Vec<String>,
    kswapd: Option<String>,
    readahead: Option<String>,
    faults: Option<FaultThreads>,
    large_pages: LargePages,
    seal: Seal,
}

impl Memory {
    /// A builder with the default of each setting.
    pub fn builder() -> Builder {
        Builder::default()
    }
}

impl Builder {
    /// The budget for pages in memory, 4 MiB or more. The manager's own tables, and swap devices in
    /// memory, come on top. Default: half of the available memory.
    pub fn memory(mut self, size: impl ToString) -> Builder {
        self.memory = Some(size.to_string());
        self
    }

    /// The highest budget that [`Memory::set_budget`] may set. Default: twice the first budget.
    pub fn memory_max(mut self, size: impl ToString) -> Builder {
        self.memory_max = Some(size.to_string());
        self
    }

    /// Adds a swap device, in the notation of `highwater run --swap`: `dir:/var/tmp:4G`, `zram:1G`,
    /// `tier:zram:1G+dir:/var/tmp:8G`. Default: an unnamed file in $TMPDIR, /var/tmp or /tmp, as
    /// large as half of the free space.
    pub fn swap(mut self, spec: impl ToString) -> Builder {
        self.swap.push(spec.to_string());
        self
    }

    /// The number of kswapd threads, which free memory in the background: 1 to 16, or `auto`.
    /// Default: 1.
    pub fn kswapd(mut self, threads: impl ToString) -> Builder {
        self.kswapd = Some(threads.to_string());
        self
    }

    /// The largest number of pages that a fault of a sequential stream reads, 1 to 16. With 1, a
    /// fault reads only its own page. Default: 16.
    pub fn readahead(mut self, pages: impl ToString) -> Builder {
        self.readahead = Some(pages.to_string());
        self
    }

    /// The threads that serve page faults. Default: handler threads where they can also serve the
    /// faults of system calls, else the faulting thread ([`Memory::serves_system_calls`]).
    pub fn faults(mut self, threads: FaultThreads) -> Builder {
        self.faults = Some(threads);
        self
    }

    /// Whether aligned blocks of 2 MiB are brought in and evicted as a whole. Default: off.
    pub fn large_pages(mut self, large_pages: LargePages) -> Builder {
        self.large_pages = large_pages;
        self
    }

    /// Whether swap files are encrypted and authenticated, with a key that never leaves memory.
    /// Default: on.
    pub fn seal(mut self, seal: Seal) -> Builder {
        self.seal = seal;
        self
    }

    /// Checks the settings, opens the devices and starts the threads.
    ///
    /// # Errors
    /// [`Error::Setting`], [`Error::Device`], [`Error::Userfaultfd`], [`Error::System`].
    pub fn build(self) -> Result<Memory, Error> {
        let exists = host_memory().map_err(Error::Setting)?;
        let (memory, memory_max) = self.budget(exists, default_memory)?;
        let kswapd_threads = self.kswapd_threads()?;
        let window_max = self.window_max()?;
        let devices = self.areas()?;
        let devices = devices.iter().map(|area| area.open(self.seal).map_err(Error::Device));
        let devices = devices.collect::<Result<Vec<_>, _>>()?;
        let large_pages = self.large_pages == LargePages::On;
        // Single pages need no contiguous frames; the kernel compacts its own frames.
        let compact = large_pages;
        let config =
            Config { kswapd_threads, window_max, compact, large_pages, ..Config::default() };
        let faults = self.faults;
        Engine::start(Plan { memory, memory_max, devices, faults, config }).map(Memory::of)
    }

    /// The budget and the highest budget, on a machine with `exists` bytes of memory.
    fn budget(
        &self,
        exists: Bytes,
        usual: impl FnOnce() -> Result<Bytes, String>,
    ) -> Result<(Bytes, Bytes), Error> {
        let memory = match &self.memory {
            Some(text) => within("memory", text, exists)?,
            None => usual().map_err(Error::Setting)?,
        };
        let most = match &self.memory_max {
            Some(text) => within("memory_max", text, exists)?,
            None => Bytes(exists.0.min(memory.0 * 2)),
        };
        if most < memory {
            let what = format!("memory_max {most} is less than memory, {memory}: give it or more");
            return Err(Error::Setting(what));
        }
        Ok((memory, most))
    }

    fn kswapd_threads(&self) -> Result<KswapdThreads, Error> {
        let Some(text) = &self.kswapd else { return Ok(Config::default().kswapd_threads) };
        text.parse().map_err(|error| Error::Setting(format!("kswapd: {error}")))
    }

    fn window_max(&self) -> Result<usize, Error> {
        let most = Config::default().window_max;
        let Some(text) = &self.readahead else { return Ok(most) };
        let pages = text.parse().ok().filter(|pages| (1..=most).contains(pages));
        pages.ok_or_else(|| Error::Setting(format!("readahead: '{text}' is not 1 to {most} pages")))
    }

    fn areas(&self) -> Result<Vec<Area>, Error> {
        if self.swap.is_empty() {
            return Ok(vec![Area::new(default_swap().map_err(Error::Setting)?)]);
        }
        let parse = |text: &String| Area::parse(text).map_err(Error::Setting);
        self.swap.iter().map(parse).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXISTS: Bytes = Bytes(1 << 30);

    #[track_caller]
    fn refused(builder: Builder, part: &str) {
        let error = builder.build().expect_err("refused").to_string();
        assert!(error.contains(part) && error.lines().count() == 1, "{error}");
    }

    #[test]
    fn a_budget_lies_between_the_least_and_what_exists() {
        let budget = |builder: Builder| {
            builder.budget(EXISTS, || Ok(Bytes(300 << 20))).map(|(now, most)| (now.0, most.0))
        };
        let mib = |now: u64, most: u64| Some((now << 20, most << 20));
        let builder = Builder::default;
        for (builder, expected) in [
            (builder(), mib(300, 600)),
            (builder().memory("256M"), mib(256, 512)),
            (builder().memory((5u64 << 20) + 1), mib(5, 10)),
            (builder().memory("600 MB"), mib(600, 1024)),
            (builder().memory("64M").memory_max("64M"), mib(64, 64)),
            (builder().memory("64M").memory_max("63M"), None),
            (builder().memory("1M"), None),
            (builder().memory("2G"), None),
            (builder().memory("much"), None),
        ] {
            assert_eq!(budget(builder.clone()).ok(), expected, "{builder:?}");
        }
    }

    #[test]
    fn a_refusal_says_what_is_wrong_and_what_is_right() {
        let builder = || Builder::default().memory("16M");
        refused(Builder::default().memory("much"), "'much' is not a size");
        refused(Builder::default().memory("1M"), "give 4 MiB or more");
        refused(builder().memory_max("8M"), "memory_max 8 MiB is less than memory, 16 MiB");
        refused(builder().swap("tape:1G"), "unknown kind \"tape\"");
        refused(builder().swap("dir:/nonexistent:1G"), "no such directory");
        refused(builder().swap("ram:16M").kswapd(17), "'17' is neither 1 to 16 nor auto");
        for pages in ["0", "17", "-1", "all"] {
            let what = format!("readahead: '{pages}' is not 1 to 16 pages");
            refused(builder().swap("ram:16M").readahead(pages), &what);
        }
    }
}
