//! Which faults a device is to have: `read=once,full=20,after=100,seed=7`.

use std::fmt;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// A read fails with EIO, and its frames hold garbage.
    Read,
    /// A write fails with EIO. Its slots hold the old contents or the new ones.
    Write,
    /// A transfer fails with EIO after half of its pages.
    Short,
    /// A write finds no room, although there are slots.
    Full,
    /// A write succeeds and stores nothing, as in a cache that loses its power.
    Lost,
    /// A transfer takes 2 ms longer.
    Delay,
}

/// The number of kinds.
pub(crate) const KINDS: usize = FaultKind::ALL.len();

impl FaultKind {
    /// All kinds. If several strike one transfer, the first in this order counts.
    pub const ALL: [FaultKind; 6] = [
        FaultKind::Read,
        FaultKind::Write,
        FaultKind::Short,
        FaultKind::Full,
        FaultKind::Lost,
        FaultKind::Delay,
    ];

    /// The name in a specification.
    pub fn name(self) -> &'static str {
        match self {
            FaultKind::Read => "read",
            FaultKind::Write => "write",
            FaultKind::Short => "short",
            FaultKind::Full => "full",
            FaultKind::Lost => "lost",
            FaultKind::Delay => "delay",
        }
    }
}

/// When a kind of fault strikes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum When {
    /// No transfer.
    #[default]
    Never,
    /// The next transfer that it can strike.
    Once,
    /// Each transfer that it can strike.
    Always,
    /// This many of 1000 transfers, chosen at random from the seed.
    Rate(u16),
}

/// The faults of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FaultPlan {
    /// By kind.
    pub(crate) when: [When; KINDS],
    /// How many transfers at the start no fault strikes.
    pub(crate) after: u64,
    /// The seed of the random choices.
    pub(crate) seed: u64,
}

impl FaultPlan {
    /// Reads `KIND=once|always|N` and `after=N`, `seed=N`, joined by commas.
    pub(crate) fn parse(text: &str) -> Result<FaultPlan, String> {
        let mut plan = FaultPlan::default();
        for part in text.split(',') {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            plan.set(key, value)?;
        }
        Ok(plan)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let number = || value.parse().map_err(|_| format!("{key} {value:?} is not a number"));
        match (key, FaultKind::ALL.into_iter().find(|kind| kind.name() == key)) {
            ("after", _) => self.after = number()?,
            ("seed", _) => self.seed = number()?,
            (_, Some(kind)) => self.when[kind as usize] = parse_when(key, value)?,
            _ => {
                let kinds = FaultKind::ALL.map(FaultKind::name).join(", ");
                return Err(format!("unknown fault {key:?} (there are {kinds}, after, seed)"));
            }
        }
        Ok(())
    }
}

fn parse_when(key: &str, value: &str) -> Result<When, String> {
    match (value, value.parse()) {
        ("once", _) => Ok(When::Once),
        ("always", _) => Ok(When::Always),
        (_, Ok(rate @ 1..1000)) => Ok(When::Rate(rate)),
        _ => Err(format!("{key} {value:?} is neither once, always, nor 1 to 999 of 1000")),
    }
}

impl fmt::Display for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for kind in FaultKind::ALL {
            let name = kind.name();
            match self.when[kind as usize] {
                When::Never => {}
                When::Once => write!(f, "{name}=once,")?,
                When::Always => write!(f, "{name}=always,")?,
                When::Rate(rate) => write!(f, "{name}={rate},")?,
            }
        }
        write!(f, "after={},seed={}", self.after, self.seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_units::Prng;

    #[test]
    fn bad_plans_say_what_is_wrong() {
        for (text, part) in [
            ("", "unknown fault \"\" (there are read, write, "),
            ("fire=once", "unknown fault \"fire\""),
            ("read", "read \"\" is neither once, always"),
            ("read=0", "read \"0\" is neither once, always"),
            ("read=1000", "nor 1 to 999 of 1000"),
            ("after=-1", "after \"-1\" is not a number"),
            ("read=once,,seed=1", "unknown fault \"\""),
        ] {
            let error = FaultPlan::parse(text).unwrap_err();
            assert!(error.contains(part) && error.lines().count() == 1, "{text:?}: {error}");
        }
    }

    #[test]
    fn random_plans_round_trip_through_text() {
        let mut random = Prng::new(1);
        for _ in 0..500 {
            let mut plan = FaultPlan {
                after: random.below(99),
                seed: random.next_u64(),
                ..FaultPlan::default()
            };
            for kind in FaultKind::ALL {
                plan.when[kind as usize] = match random.below(4) {
                    0 => When::Never,
                    1 => When::Once,
                    2 => When::Always,
                    _ => When::Rate(1 + random.below(999) as u16),
                };
            }
            assert_eq!(FaultPlan::parse(&plan.to_string()), Ok(plan));
        }
    }
}
