//! Virtual page tables, and pending TLB flushes.

use highwater_platform::Protection;
use highwater_units::{CpuId, Pfn, SpaceId, Vpn};

/// The page tables of all spaces.
#[derive(Default)]
pub(crate) struct Spaces(pub(crate) Vec<PageTable>);

#[derive(Default)]
pub(crate) struct PageTable {
    pub(crate) pages: Vec<Option<(Pfn, Protection)>>,
    /// Bit mask of the CPUs that may hold its translations in their TLB.
    pub(crate) cpus: Vec<u64>,
}

/// Unmapped pages with a pending flush, for each thread that unmapped pages.
#[derive(Default)]
pub(crate) struct Flush {
    pub(crate) pages: usize,
    pub(crate) targets: Vec<CpuId>,
}

impl Spaces {
    pub(crate) fn page(&mut self, space: SpaceId, vpn: Vpn) -> &mut Option<(Pfn, Protection)> {
        &mut self.0[usize::from(space.0)].pages[vpn.0 as usize]
    }

    /// Records that a CPU uses a space.
    pub(crate) fn used_by(&mut self, space: SpaceId, cpu: CpuId) {
        self.0[usize::from(space.0)].cpus[usize::from(cpu.0 / 64)] |= 1 << (cpu.0 % 64);
    }

    /// Clears the CPU mask of a space. Returns the CPUs to flush: all of the mask except `but`.
    pub(crate) fn take_cpus(&mut self, space: SpaceId, but: CpuId) -> Vec<CpuId> {
        let words = &mut self.0[usize::from(space.0)].cpus;
        let mut cpus = Vec::new();
        for (index, word) in words.iter_mut().enumerate() {
            let mut bits = std::mem::take(word);
            while bits != 0 {
                let cpu = CpuId((index * 64) as u16 + bits.trailing_zeros() as u16);
                bits &= bits - 1;
                cpus.extend((cpu != but).then_some(cpu));
            }
        }
        cpus
    }
}
