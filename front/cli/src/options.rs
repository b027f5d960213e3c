//! The budget on the command line.

use crate::Refusal;
use highwater_devices::{Exact, SizeError, size};
use highwater_session::{Scope, default_memory, host_memory};
use highwater_units::Bytes;

/// The smallest budget: the manager's watermarks and batches need this many frames to make
/// progress.
const BUDGET_MIN: Bytes = Bytes(4 << 20);

/// The options for memory, as given.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Given<'a> {
    /// `--memory`
    pub(crate) memory: Option<&'a str>,
    /// `--paged`
    pub(crate) paged: Option<&'a str>,
    /// `--memory-per-process`
    pub(crate) per_process: Option<&'a str>,
    /// `--memory-max`
    pub(crate) max: Option<&'a str>,
}

/// The memory of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    /// Budget of a process that shares none with others.
    pub(crate) alone: Bytes,
    /// Memory of all processes together; `None`: each has its own budget.
    pub(crate) shared: Option<Shared>,
}

impl Memory {
    /// The budget of all processes, or of each.
    pub(crate) fn budget(&self) -> Bytes {
        self.shared.map_or(self.alone, |shared| shared.limit)
    }

    /// The most memory that compressed pages may ever take of the budget: half of the highest
    /// budget. `None`: compressed pages do not count towards the budget.
    pub(crate) fn compressed_most(&self) -> Option<Bytes> {
        let counts = |shared: &Shared| shared.scope == Scope::Everything;
        self.shared.filter(counts).map(|shared| Bytes::of_pages(shared.limit_max.pages() / 2))
    }
}

/// Memory that all processes of a run share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shared {
    /// The memory that counts towards the budget.
    pub(crate) scope: Scope,
    /// The budget.
    pub(crate) limit: Bytes,
    /// The highest budget that `highwater ctl` may set.
    pub(crate) limit_max: Bytes,
    /// The most that one process may use of it.
    pub(crate) each_max: Bytes,
}

/// The memory of a run, if this machine has as much. Without options, the budget is half of the
/// available memory.
pub(crate) fn memory(given: Given<'_>) -> Result<Memory, Refusal> {
    divide(given, host_memory().map_err(unknown)?, || default_memory().map_err(unknown))
}

/// The highest budget that `highwater ctl` may set, from the value of `--memory-max`.
pub(crate) fn memory_max(text: &str) -> Result<Bytes, Refusal> {
    within("--memory-max ", size_of("--memory-max", text)?, host_memory().map_err(unknown)?)
}

/// The refusal if the machine's memory is not known, and why.
fn unknown(what: String) -> Refusal {
    Refusal::new(what, "mount /proc")
}

fn divide(
    given: Given<'_>,
    exists: Bytes,
    usual: impl FnOnce() -> Result<Bytes, Refusal>,
) -> Result<Memory, Refusal> {
    let option = |name, text: Option<&str>| {
        text.map(|text| within(&format!("{name} "), size_of(name, text)?, exists)).transpose()
    };
    let each = option("--memory-per-process", given.per_process)?;
    let all = option("--memory", given.memory)?;
    let paged = option("--paged", given.paged)?;
    let max = option("--memory-max", given.max)?;
    let (scope, limit) = match (all, paged, each, max) {
        (Some(_), Some(_), ..) => {
            let what = "--memory is a limit on all memory, --paged on paged memory alone";
            return Err(Refusal::new(what, "give one of them"));
        }
        (None, None, Some(alone), None) => return Ok(Memory { alone, shared: None }),
        // The budget would be half of the available memory, which nobody asked for.
        (None, None, Some(_), Some(_)) => {
            let what = "--memory-max is for a shared budget, and --memory-per-process shares none";
            return Err(Refusal::new(what, "give --memory too, or leave --memory-max out"));
        }
        (Some(all), ..) => (Scope::Everything, all),
        (None, Some(paged), ..) => (Scope::Paged, paged),
        (None, None, ..) => (Scope::Everything, within("--memory ", usual()?, exists)?),
    };
    let limit_max = max.unwrap_or(Bytes(exists.0.min(limit.0 * 2)));
    if limit_max < limit {
        let what = format!("--memory-max {limit_max} is less than the budget of {limit}");
        return Err(Refusal::new(what, format!("give --memory-max {} or more", Exact(limit))));
    }
    let each_max = each.unwrap_or(limit_max);
    let shared = Some(Shared { scope, limit, limit_max, each_max });
    Ok(Memory { alone: limit.min(each_max), shared })
}

/// The value of an option. Blanks around it do not count.
pub(crate) fn size_of(option: &str, text: &str) -> Result<Bytes, Refusal> {
    size(text.trim()).map_err(|error| match error {
        SizeError::TooLarge => {
            Refusal::new(format!("{option} '{text}' is too large"), "give less, for example 512M")
        }
        error => {
            let remedy = "give a number of bytes with K, M, G or T behind it, for example 512M";
            Refusal::new(format!("{option} '{text}' is not a size ({error})"), remedy)
        }
    })
}

/// A budget in whole pages, if it is large enough and the machine has as much memory. `option`: the
/// text before the size in a refusal, such as `--memory ` or `memory=`.
pub(crate) fn within(option: &str, budget: Bytes, exists: Bytes) -> Result<Bytes, Refusal> {
    if budget < BUDGET_MIN {
        let what = format!("a budget of {budget} is too small");
        return Err(Refusal::new(what, format!("give {option}{} or more", Exact(BUDGET_MIN))));
    }
    if budget > exists {
        let what = format!(
            "a budget of {budget} is more than this machine, or its container, has: {exists}"
        );
        // Page tables, the page cache and other processes need memory, too, and do not count
        // towards the budget.
        let most = Bytes(((exists.0 / 10 * 9) >> 20) << 20);
        return Err(Refusal::new(what, format!("give {option}{} or less", Exact(most))));
    }
    Ok(Bytes::of_pages(budget.pages()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_size_comes_with_an_example() {
        for text in ["512M", " 512M", "512M ", " 512 M\n"] {
            assert_eq!(size_of("--memory", text), Ok(Bytes(512 << 20)), "{text:?}");
        }
        for (text, what) in [
            ("much", "is not a size (no such number or unit)"),
            ("-5M", "is not a size (no such number or unit)"),
            (" ", "is not a size (it has no number)"),
            ("99999999999999999999", "is too large"),
            ("99999999999T", "is too large"),
        ] {
            let refusal = size_of("--memory", text).unwrap_err();
            assert_eq!(refusal.what(), format!("--memory '{text}' {what}"));
            assert!(refusal.remedy().contains("512M"), "{refusal}");
        }
    }

    #[test]
    fn a_budget_lies_between_the_least_and_what_exists() {
        let exists = Bytes(1 << 30);
        assert_eq!(within("--memory ", BUDGET_MIN, exists), Ok(BUDGET_MIN));
        assert_eq!(within("--memory ", exists, exists), Ok(exists));
        assert_eq!(within("--memory ", Bytes((5 << 20) + 1), exists), Ok(Bytes(5 << 20)));
        let small = within("memory=", Bytes(BUDGET_MIN.0 - 1), exists).unwrap_err();
        assert_eq!(small.remedy(), "give memory=4M or more");
        let large = within("--memory ", Bytes(exists.0 + 1), exists).unwrap_err();
        assert_eq!(large.remedy(), "give --memory 921M or less");
    }

    #[test]
    fn processes_share_memory_unless_each_has_its_own() {
        let m = |mib: u64| Bytes(mib << 20);
        let given = |memory, per_process, max| {
            divide(Given { memory, paged: None, per_process, max }, m(1024), || Ok(m(300)))
        };
        let shared = |limit, limit_max, each_max| {
            let [limit, limit_max, each_max] = [limit, limit_max, each_max].map(m);
            let shared = Shared { scope: Scope::Everything, limit, limit_max, each_max };
            Ok(Memory { alone: limit.min(each_max), shared: Some(shared) })
        };
        assert_eq!(given(None, None, None), shared(300, 600, 600));
        assert_eq!(given(Some("600M"), None, None), shared(600, 1024, 1024));
        assert_eq!(given(Some("100M"), None, Some("800M")), shared(100, 800, 800));
        assert_eq!(given(Some("100M"), Some("40M"), None), shared(100, 200, 40));
        assert_eq!(given(None, Some("40M"), None), Ok(Memory { alone: m(40), shared: None }));
        assert_eq!(given(None, None, Some("700M")), shared(300, 700, 700));
        for max in ["20M", "128M", "700M"] {
            let refusal = given(None, Some("40M"), Some(max)).unwrap_err();
            assert!(refusal.what().starts_with("--memory-max is for a shared budget"), "{refusal}");
        }
        for (memory, each, max) in
            [("100M", None, Some("99M")), ("2G", None, None), ("1G", Some("1M"), None)]
        {
            assert!(given(Some(memory), each, max).is_err(), "{memory} {each:?} {max:?}");
        }
    }

    #[test]
    fn a_budget_is_for_all_memory_or_for_paged_memory() {
        let scope = |memory, paged| {
            let given = Given { memory, paged, per_process: Some("10M"), max: None };
            let memory = divide(given, Bytes(1 << 30), || Ok(Bytes(300 << 20)))?;
            Ok(memory.shared.map(|shared| shared.scope))
        };
        assert_eq!(scope(Some("100M"), None), Ok(Some(Scope::Everything)));
        assert_eq!(scope(None, Some("100M")), Ok(Some(Scope::Paged)));
        assert_eq!(scope(None, None), Ok(None));
        let refusal: Refusal = scope(Some("100M"), Some("100M")).unwrap_err();
        assert!(refusal.to_string().contains("give one of them"), "{refusal}");
    }
}
