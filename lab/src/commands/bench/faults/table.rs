//! All cases as tables: a row each, a group of columns for each subject; then what they mean.

use super::figures::{Case, CaseRun, Matrix, Subject};
use crate::commands::bench::common::name_of;
use highwater_command::{Unit, count, counted};
use highwater_units::Bytes;
use std::fmt::Write;

/// A rate that changes by more than this from one half of a run to the other is marked.
const STEADY: f64 = 0.1;

/// The meaning of the columns.
const MEANING: &str = "

rate: accesses/s of all threads; ratio: to the kernel's; miss: major faults / accesses; fault:
threads x time / major faults; and per major fault: CPU time of the process, TLB interrupts (of the
whole machine), system calls for pages (userfaultfd, madvise), context switches of the process";

/// Figures that others have published.
const PUBLISHED: &str = "\
published: nothing to put beside. The repository of fltrace (eden-farmem/fltrace), which pages by
userfaultfd too, gives no rates or times of faults; the authors' paper, \"Eden: Developer-Friendly
Application-Integrated Far Memory\" (NSDI 2025), compares whole programs with Fastswap.";

/// A column of a subject's group: its head, its width, and what it shows.
struct Column {
    head: &'static str,
    width: usize,
    show: fn(&CaseRun) -> String,
}

const RATE: Column = Column { head: "rate", width: 8, show: rate };
const MISS: Column =
    Column { head: "miss", width: 6, show: |run| ratio(run.figures.major_faults_per_access) };
const CPU: Column = Column {
    head: "CPU",
    width: 9,
    show: |run| Unit::Time.show(run.figures.cpu_ns_per_major_fault),
};
const TLB: Column = Column {
    head: "TLB",
    width: 6,
    show: |run| Unit::Rate.show(run.figures.tlb_interrupts_per_major_fault),
};
const SWITCHES: Column = Column {
    head: "switch",
    width: 8,
    show: |run| Unit::Rate.show(run.figures.context_switches_per_major_fault),
};
const CALLS: Column = Column {
    head: "calls",
    width: 7,
    show: |run| Unit::Rate.show(run.figures.calls_per_major_fault),
};
const RATE_RATIO: Column =
    Column { head: "ratio", width: 6, show: |run| ratio(run.accesses_ratio) };
const CPU_RATIO: Column =
    Column { head: "ratio", width: 6, show: |run| ratio(run.cpu_per_major_fault_ratio) };
const TIME: Column = Column {
    head: "fault",
    width: 9,
    show: |run| Unit::Time.show(run.figures.ns_per_major_fault_and_thread),
};

/// The columns of a subject.
fn columns(subject: Subject) -> &'static [Column] {
    match subject {
        Subject::Kernel => &[RATE, MISS, CPU, TLB, SWITCHES],
        Subject::Program => &[RATE, RATE_RATIO],
        Subject::InThread | Subject::Handlers | Subject::Zram => {
            &[RATE, RATE_RATIO, MISS, CPU, CPU_RATIO, TLB, CALLS, SWITCHES]
        }
        Subject::Os => &[RATE, RATE_RATIO, MISS, CPU, CPU_RATIO, TLB, SWITCHES, TIME],
    }
}

/// The tables, and notes.
pub(super) fn table(matrix: &Matrix) -> String {
    let mut text = heading(matrix);
    let main = [Subject::Program, Subject::InThread, Subject::Handlers, Subject::Kernel];
    text += &block(matrix, &main);
    text += &block(matrix, &[Subject::Zram, Subject::Os]);
    text += MEANING;
    if matrix.runs().any(|run| !is_steady(run)) {
        let percent = STEADY * 100.0;
        let _ = write!(text, "\n*: halves of the run differ by more than {percent} %");
    }
    if let Some(others) = others(matrix) {
        let _ = write!(text, "\n{others}");
    }
    matrix.conditions.iter().for_each(|line| text += &format!("\n{line}"));
    let _ = write!(text, "\n{PUBLISHED}\n{}", checked(matrix));
    text
}

/// The table of some subjects, of those cases that they ran.
fn block(matrix: &Matrix, subjects: &[Subject]) -> String {
    let ran = |subject: &Subject| matrix.cases.iter().any(|case| case.runs.contains_key(subject));
    let subjects: Vec<Subject> = subjects.iter().copied().filter(ran).collect();
    if subjects.is_empty() {
        return String::new();
    }
    let (mut groups, mut heads) = (format!("{:13}", ""), format!("{:9}{:>4}", "pattern", "T"));
    for subject in &subjects {
        let columns = columns(*subject);
        let width: usize = columns.iter().map(|column| column.width).sum();
        let _ = write!(groups, "  {:-^width$}", format!(" {} ", name_of(subject)), width = width);
        heads += "  ";
        columns.iter().for_each(|c| heads += &format!("{:>width$}", c.head, width = c.width));
    }
    let mut text = format!("\n\n{groups}\n{heads}");
    let of_these = |case: &&Case| subjects.iter().any(|subject| case.runs.contains_key(subject));
    for case in matrix.cases.iter().filter(of_these) {
        let _ = write!(text, "\n{:9}{:>4}", case.pattern, case.threads);
        for subject in &subjects {
            text += "  ";
            let run = case.runs.get(subject);
            for Column { width, show, .. } in columns(*subject) {
                let _ = write!(text, "{:>width$}", run.map_or("-".into(), show));
            }
        }
    }
    text
}

fn heading(matrix: &Matrix) -> String {
    let Matrix { read_percent, rounds, seed, .. } = matrix;
    let [set, memory] = [matrix.set_bytes, matrix.memory_bytes].map(Bytes);
    let rounds = counted((*rounds).into(), "round", "rounds");
    format!(
        "faults: pmbench, set {set}, memory {memory}, {read_percent}% reads, seed {seed}, \
         median of {rounds}"
    )
}

/// The rate, marked if it was not steady.
fn rate(run: &CaseRun) -> String {
    let mark = if is_steady(run) { "" } else { "*" };
    Unit::Rate.show(Some(run.figures.accesses_per_s)) + mark
}

fn is_steady(run: &CaseRun) -> bool {
    run.figures.drift.is_none_or(|drift| drift.abs() <= STEADY)
}

fn ratio(ratio: Option<f64>) -> String {
    ratio.map_or("-".into(), |ratio| format!("{ratio:.2}"))
}

/// How much the machine had to do beside; TLB interrupts are its too.
fn others(matrix: &Matrix) -> Option<String> {
    let busy: Vec<f64> = matrix.runs().filter_map(|run| run.figures.other_cpus).collect();
    let most = busy.iter().copied().max_by(f64::total_cmp)?;
    let mean = busy.iter().sum::<f64>() / busy.len() as f64;
    Some(format!("CPUs busy with other programs: {mean:.2}, at most {most:.2} in one run"))
}

fn checked(matrix: &Matrix) -> String {
    let reads = matrix.runs().map(|run| run.figures.checked_reads).sum();
    let words = matrix.runs().map(|run| run.figures.swept_words).sum();
    let runs = counted(matrix.runs().count() as u64, "run", "runs");
    let [reads, words] = [reads, words].map(count);
    format!("contents checked: {runs}, {reads} reads, full passes of {words} words ok")
}

impl Matrix {
    fn runs(&self) -> impl Iterator<Item = &CaseRun> {
        self.cases.iter().flat_map(|case| case.runs.values())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_lab::workload::figures::Figures;

    fn figures(rate: f64, cpu_us: f64, drift: f64) -> Figures {
        Figures {
            accesses_per_s: rate,
            cpu_ns_per_major_fault: Some(cpu_us * 1e3),
            tlb_interrupts_per_major_fault: Some(0.02),
            calls_per_major_fault: Some(1.1),
            major_faults_per_access: Some(0.4),
            drift: Some(drift),
            other_cpus: Some(cpu_us / 100.0),
            checked_reads: 500,
            ..Figures::default()
        }
    }

    fn matrix(cases: Vec<Case>) -> Matrix {
        Matrix {
            memory_bytes: 1 << 20,
            set_bytes: 4 << 20,
            read_percent: 80,
            warm_up_seconds: 0,
            rounds: 1,
            seed: 1,
            conditions: vec!["kernel: as it is".into()],
            cases,
        }
    }

    fn words_of(text: &str, line: &str) -> Vec<String> {
        let line = text.lines().find(|found| found.starts_with(line)).expect("a row");
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn a_case_is_a_row_beside_the_kernel() {
        let kernel = (Subject::Kernel, figures(1e5, 20.0, 0.0));
        let runs = [kernel, (Subject::InThread, figures(2.5e5, 10.0, -0.2))];
        let case = Case::new("zipf".into(), 8, runs.into_iter().collect());
        let text = table(&matrix(vec![case]));
        let row = "zipf 8 250 k* 2.50 0.40 10.0 us 0.50 0.02 1.10 - 100 k 0.40 20.0 us 0.02 -";
        assert_eq!(words_of(&text, "zipf"), row.split(' ').collect::<Vec<_>>(), "{text}");
        for part in [
            "in-thread",
            "halves of the run differ",
            "other programs: 0.15, at most 0.20",
            "kernel: as it is",
            "2 runs, 1,000 reads",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(!text.contains("handlers -"), "{text}");
    }

    #[test]
    fn without_a_kernel_there_is_no_ratio() {
        let runs = [(Subject::Os, figures(1e6, 2.0, 0.05))];
        let case = Case::new("uniform".into(), 1, runs.into_iter().collect());
        let text = table(&matrix(vec![case]));
        let row = "uniform 1 1.00 M - 0.40 2.00 us - 0.02 - -";
        assert_eq!(words_of(&text, "uniform"), row.split(' ').collect::<Vec<_>>(), "{text}");
        assert!(!text.contains("halves of the run differ"), "{text}");
    }
}
