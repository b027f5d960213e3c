//! The budget on the command line.

use crate::Refusal;
use highwater_command::size;
use highwater_session::{default_memory, host_memory};
use highwater_units::Bytes;

/// The smallest budget: the manager's watermarks and batches need this many frames to make
/// progress.
const BUDGET_MIN: Bytes = Bytes(4 << 20);

/// The budget from `--memory`, or the default, if this machine has as much memory.
pub(crate) fn budget(given: Option<&str>) -> Result<Bytes, Refusal> {
    let unknown = |what| Refusal::new(what, "mount /proc");
    let exists = host_memory().map_err(unknown)?;
    match given {
        Some(text) => within(memory(text)?, exists),
        None => within(default_memory().map_err(unknown)?, exists),
    }
}

/// The value of `--memory`.
fn memory(text: &str) -> Result<Bytes, Refusal> {
    size(text).map_err(|error| {
        let remedy = "give a number of bytes with K, M, G or T behind it, for example 512M";
        Refusal::new(format!("--memory '{text}' is not a size ({error})"), remedy)
    })
}

fn within(budget: Bytes, exists: Bytes) -> Result<Bytes, Refusal> {
    if budget < BUDGET_MIN {
        let what = format!("a budget of {budget} is too small");
        return Err(Refusal::new(what, format!("give --memory {BUDGET_MIN} or more")));
    }
    if budget > exists {
        let what = format!("a budget of {budget} is more than the memory of this machine");
        return Err(Refusal::new(what, format!("give --memory {exists} or less")));
    }
    Ok(Bytes::of_pages(budget.pages()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_size_comes_with_an_example() {
        assert_eq!(memory("512M"), Ok(Bytes(512 << 20)));
        assert!(memory("much").unwrap_err().remedy().contains("512M"));
    }

    #[test]
    fn a_budget_lies_between_the_least_and_what_exists() {
        let exists = Bytes(1 << 30);
        assert_eq!(within(BUDGET_MIN, exists), Ok(BUDGET_MIN));
        assert_eq!(within(exists, exists), Ok(exists));
        assert_eq!(within(Bytes((5 << 20) + 1), exists), Ok(Bytes(5 << 20)));
        let small = within(Bytes(BUDGET_MIN.0 - 1), exists).unwrap_err();
        assert!(small.remedy().contains("4 MiB"));
        assert!(within(Bytes(exists.0 + 1), exists).unwrap_err().remedy().contains("1 GiB"));
    }
}
