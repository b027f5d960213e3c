//! How random tests choose their seeds: a few by default, many by hand, one to replay.

/// Runs `test` for seeds 1 to `count`. `HIGHWATER_SEED=S` runs that one alone, `HIGHWATER_SEEDS=N`
/// that many. A failure names its seed.
pub(crate) fn seeds(count: u64, test: impl Fn(u64)) {
    let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    let seeds = match number("HIGHWATER_SEED") {
        Some(one) => one..=one,
        None => 1..=number("HIGHWATER_SEEDS").unwrap_or(count),
    };
    for seed in seeds {
        let naming = Naming(seed);
        test(seed);
        std::mem::forget(naming);
    }
}

/// Prints the seed when a test panics.
struct Naming(u64);

impl Drop for Naming {
    fn drop(&mut self) {
        eprintln!("failed with HIGHWATER_SEED={}", self.0);
    }
}
