//! The report of a run, and the bounds that every run must keep.

use serde_json::Value;
use std::path::Path;

const MIB: u64 = 1 << 20;
/// The manager's allowance: this, and a share of the paged memory.
const OWN_BYTES: u64 = 32 * MIB;
const OWN_PERCENT: u64 = 3;
/// Additional unpaged memory that a program may use under Highwater.
const ELSEWHERE_SLACK: u64 = 32 * MIB;

/// The JSON of a run.
pub(crate) struct Report(Value);

impl Report {
    pub(crate) fn read(path: &Path) -> Report {
        let text = std::fs::read_to_string(path).expect("a report was written");
        Report(serde_json::from_str(&text).expect("the report is JSON"))
    }

    /// A number, by JSON pointer.
    pub(crate) fn number(&self, pointer: &str) -> u64 {
        let value = self.0.pointer(pointer).and_then(Value::as_u64);
        value.unwrap_or_else(|| panic!("no number {pointer} in the report: {}", self.0))
    }

    /// A number with a fraction, by JSON pointer.
    pub(crate) fn real(&self, pointer: &str) -> f64 {
        let value = self.0.pointer(pointer).and_then(Value::as_f64);
        value.unwrap_or_else(|| panic!("no number {pointer} in the report: {}", self.0))
    }

    /// A text, by JSON pointer.
    pub(crate) fn text(&self, pointer: &str) -> &str {
        let value = self.0.pointer(pointer).and_then(Value::as_str);
        value.unwrap_or_else(|| panic!("no text {pointer} in the report: {}", self.0))
    }

    /// A number of each sample of the series.
    pub(crate) fn samples(&self, key: &str) -> Vec<u64> {
        let samples = self.0.pointer("/series").and_then(Value::as_array).expect("a series");
        let number = |sample: &Value| sample[key].as_u64().unwrap_or_else(|| panic!("no {key}"));
        samples.iter().map(number).collect()
    }

    /// A number about malloc's objects of one size; `pointer` is relative to the class.
    pub(crate) fn of_malloc(&self, name: &str, pointer: &str) -> u64 {
        let classes = self.0.pointer("/malloc/classes").and_then(Value::as_array);
        let mut classes = classes.into_iter().flatten();
        let class = classes.find(|class| class.pointer("/name") == Some(&name.into()));
        let number = class.and_then(|class| class.pointer(pointer)?.as_u64());
        number.unwrap_or_else(|| panic!("no {name}{pointer} in the report: {}", self.0))
    }

    /// Checks that the program used swap.
    pub(crate) fn expect_swapping(&self) {
        for counter in ["/vmstat/pswpout", "/vmstat/pswpin", "/faults_major"] {
            assert!(self.number(counter) > 0, "{counter} is 0: {}", self.0);
        }
    }

    /// Checks that the resident set never exceeded the budget by more than documented, and that
    /// unpaged memory ("elsewhere" in the report) does not hide memory that should have been paged.
    /// `unlimited_peak` is the largest resident set without Highwater.
    pub(crate) fn expect_bounds(&self, budget: u64, unlimited_peak: u64) {
        let part = |name: &str| self.number(&format!("/peak_resident/{name}"));
        let (elsewhere, ram) = (part("elsewhere_bytes"), part("ram_swap_bytes"));
        let paged = self.number("/paged_peak_bytes");
        assert_eq!(self.number("/budget_bytes"), budget);
        let bound = budget + OWN_BYTES + paged * OWN_PERCENT / 100 + elsewhere + ram;
        assert!(part("bytes") <= bound, "resident over {bound} bytes: {}", self.0);
        let others = unlimited_peak.saturating_sub(paged) + ELSEWHERE_SLACK;
        assert!(elsewhere <= others, "over {others} bytes elsewhere: {}", self.0);
    }

    /// Checks that pages were compressed, in accounted memory smaller than they are.
    pub(crate) fn expect_compression(&self) {
        let part = |name: &str| self.number(&format!("/compression/{name}"));
        let (used, ram) = (part("used_bytes"), self.number("/peak_resident/ram_swap_bytes"));
        assert!(used > 0 && used < part("bytes"), "nothing was compressed: {}", self.0);
        assert!(ram > 0, "compressed memory is not counted: {}", self.0);
    }

    /// Checks that pages moved to the slow level in batches, and were read from there.
    pub(crate) fn expect_tiers(&self) {
        let part = |name: &str| self.number(&format!("/tiers/{name}"));
        for name in ["fast_bytes", "slow_bytes", "written_back_bytes", "slow_read_bytes"] {
            assert!(part(name) > 0, "no {name}: {}", self.0);
        }
        let (pages, ios) = (self.number("/vmstat/tier_writeback"), part("writeback_ios"));
        assert!(pages > 4 * ios, "{pages} pages in {ios} writes: {}", self.0);
        assert_eq!(part("writeback_failures"), 0, "{}", self.0);
    }

    /// The figures in one line.
    pub(crate) fn figures(&self) -> String {
        let mib = |pointer: &str| self.number(pointer) / MIB;
        format!(
            "peak {} MiB (arena {}, manager {}, elsewhere {}, RAM swap {}), paged {} MiB, \
             {} major faults, {} pages out, {} in",
            mib("/peak_resident/bytes"),
            mib("/peak_resident/arena_bytes"),
            mib("/peak_resident/manager_bytes"),
            mib("/peak_resident/elsewhere_bytes"),
            mib("/peak_resident/ram_swap_bytes"),
            mib("/paged_peak_bytes"),
            self.number("/faults_major"),
            self.number("/vmstat/pswpout"),
            self.number("/vmstat/pswpin"),
        )
    }
}
