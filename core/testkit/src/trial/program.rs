//! How the users of a trial reach their pages.

use highwater_mm::Access;
use highwater_mm::Manager;
use highwater_mm::error::FaultError;
use highwater_platform::Platform;
use highwater_units::{SpaceId, Vpn};

/// What holds between two accesses to one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Pages are reached through guards: what is done under one guard is done at once, and more
    /// than one page can be held ([`Manager::pin`]).
    Guards,
    /// Pages are reached through page tables: they may come and go between any two accesses.
    PageTables,
}

/// The program that uses the manager: single accesses, which fault as need be.
pub trait Program<P: Platform>: Send + Sync + 'static {
    /// How it reaches pages. Constant.
    fn reach(&self) -> Reach;

    /// The `word`th 8-byte word of a page.
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

    /// Sets a word of a page.
    ///
    /// # Errors
    /// The fault's; the word is as it was.
    fn store(
        &self,
        manager: &Manager<P>,
        space: SpaceId,
        vpn: Vpn,
        word: usize,
        value: u64,
    ) -> Result<(), FaultError>;
}

/// Guards: every access pins its page.
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
