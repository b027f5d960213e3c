//! How the users of a trial access their pages.

use highwater_mm::Access;
use highwater_mm::Manager;
use highwater_mm::error::FaultError;
use highwater_platform::Platform;
use highwater_units::{SpaceId, Vpn};

/// How a program reaches pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Through guards ([`Manager::pin`]): a page stays while its guard lives, and a thread can pin
    /// several pages.
    Guards,
    /// Through page tables: a page may be evicted between any two accesses.
    PageTables,
}

/// The program that uses the manager: single accesses that may fault.
pub trait Program<P: Platform>: Send + Sync + 'static {
    /// How it reaches pages; constant.
    fn reach(&self) -> Reach;

    /// Loads the 8-byte word number `word` of a page.
    ///
    /// # Errors
    /// The fault's; see [`FaultError`].
    fn load(
        &self,
        manager: &Manager<P>,
        space: SpaceId,
        vpn: Vpn,
        word: usize,
    ) -> Result<u64, FaultError>;

    /// Stores a word of a page.
    ///
    /// # Errors
    /// The fault's; the word is unchanged.
    fn store(
        &self,
        manager: &Manager<P>,
        space: SpaceId,
        vpn: Vpn,
        word: usize,
        value: u64,
    ) -> Result<(), FaultError>;

    /// Makes the platform use as much memory as `frames` frames have, in addition to its frames.
    /// Platforms that tests cannot make do so ignore the call.
    fn owe(&self, _manager: &Manager<P>, _frames: u32) {}
}

/// A program with guards: every access pins its page.
#[derive(Clone, Copy, Debug)]
pub struct Pins;

impl<P: Platform> Program<P> for Pins {
    fn reach(&self) -> Reach {
        Reach::Guards
    }

    fn load(
        &self,
        manager: &Manager<P>,
        space: SpaceId,
        vpn: Vpn,
        word: usize,
    ) -> Result<u64, FaultError> {
        let pin = manager.pin(space, vpn, Access::Read)?;
        Ok(manager.platform().load(pin.pfn(), word))
    }

    fn store(
        &self,
        manager: &Manager<P>,
        space: SpaceId,
        vpn: Vpn,
        word: usize,
        value: u64,
    ) -> Result<(), FaultError> {
        let pin = manager.pin(space, vpn, Access::Write)?;
        manager.platform().store(pin.pfn(), word, value);
        Ok(())
    }
}
