//! Files of a run that another process of the user has filled with arbitrary bytes: the functions
//! that read them return, and neither panic nor wait.

use crate::budget::{Activity, Words};
use crate::stats_file::{read_all, take_ended, unpublished};
use crate::{
    BUDGET_FILE, Besides, Budget, FLOOR, Forked, Name, Scope, Settings, Share, StatsFile, targets,
};
use highwater_units::Prng;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Far above what a call takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Words that break sums, indices and shifts.
fn word(random: &mut Prng) -> u64 {
    match random.below(6) {
        0 => 0,
        1 => u64::MAX,
        2 => u64::MAX >> random.below(64),
        3 => 1 << random.below(64),
        4 => random.below(5000),
        _ => random.next_u64(),
    }
}

/// Overwrites words of the budget, but not those that identify its layout.
fn spoil(dir: &Path, random: &mut Prng) {
    let file = OpenOptions::new().write(true).open(dir.join(BUDGET_FILE)).unwrap();
    let words = size_of::<Words>() as u64 / 8;
    // The head and the first entries, or anything.
    let within = if random.percent(70) { 200 } else { words };
    for _ in 0..1 + random.below(60) {
        let at = 1 + random.below(within.min(words) - 1);
        file.write_all_at(&word(random).to_ne_bytes(), at * 8).unwrap();
    }
    if random.percent(20) {
        // A swap item, perhaps, of any text.
        let at = words - random.below(5000);
        let text: Vec<u8> = (0..400).map(|_| random.next_u64() as u8).collect();
        file.write_all_at(&text[..(8 * (words - at)).min(400) as usize], at * 8).unwrap();
    }
}

/// Calls what `highwater run`, `ls`, `top` and `ctl` call.
fn look(budget: &Budget, random: &mut Prng) {
    let members = budget.members();
    let claims: Vec<_> = members.iter().map(|member| member.claim).collect();
    let targets = targets(budget.room(), &claims, None);
    assert_eq!(targets.len(), claims.len());
    budget.compacted(random.below(9) as u32);
    for place in 0..budget.swap_items().len() {
        budget.swap_claimed(place);
        budget.swap_failure(place);
        budget.swap_openings(place);
    }
    let slots: u64 = budget.swap_in_use().iter().map(|device| device.slots_left()).sum();
    let sums = [slots, budget.pages_left(), budget.granted(), budget.unpaged(), budget.limit()];
    std::hint::black_box((sums, budget.scope(), budget.tuning(), budget.swap_behind(1)));
    budget.set_limit(word(random));
}

/// Calls what a process of the run calls.
fn take_part(share: &Share, random: &mut Prng) {
    share.borrow(random.below(FLOOR));
    share.give_back(share.granted().min(random.below(9)));
    share.set_activity(Activity { stalled: random.below(99), runs: random.below(99) });
    share.aim(random.below(99), random.below(99));
    share.owed(random.below(99), random.below(99));
    share.take_lent();
    share.set_besides(Besides { shared: -9, common: random.below(99), ..Besides::default() });
    share.exchange(random.below(99).cast_signed());
    share.pay(random.below(99));
    let claimed = share.claim_swap(random.below(4) as usize, 9);
    share.give_back_swap(0, claimed.min(1));
    share.swap_is_scarce(random.below(4) as usize);
    std::hint::black_box((share.swap_in_use(), share.tuning(), share.compaction(), share.room()));
    std::hint::black_box((share.taken(), share.has_kin(), share.left()));
    std::hint::black_box((share.requested(), share.wait_requested(Duration::ZERO)));
    share.reap();
    share.reap_all();
}

#[test]
fn a_budget_of_anything_is_read() {
    let (done, ended) = channel();
    std::thread::spawn(move || {
        for seed in 0..300 {
            let random = &mut Prng::new(seed);
            let dir = tempfile::tempdir().unwrap();
            let budget = Budget::create(dir.path(), Scope::Everything, 10_000, 20_000).unwrap();
            let file = StatsFile::create(dir.path(), 7, Name::default()).unwrap();
            let joined = Budget::open(dir.path()).unwrap().join(file.image(), Forked::default());
            let share = joined.unwrap();
            for _ in 0..10 {
                spoil(dir.path(), random);
                look(&budget, random);
                take_part(&share, random);
            }
        }
        done.send(()).unwrap();
    });
    assert_eq!(ended.recv_timeout(PATIENCE), Ok(()), "it panicked, or hangs");
}

#[test]
fn statistics_of_anything_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let (path, mut random) = (dir.path().join("7.0"), Prng::new(1));
    drop(StatsFile::create(dir.path(), 7, Name::default()).unwrap());
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let words = file.metadata().unwrap().len() / 8;
    for _ in 0..500 {
        for _ in 0..1 + random.below(50) {
            let at = 2 + random.below(words - 2);
            file.write_all_at(&word(&mut random).to_ne_bytes(), at * 8).unwrap();
        }
        file.write_all_at(&[0; 8], 8).unwrap();
        assert!(read_all(dir.path()).len() <= 1);
    }
}

/// A pipe of that name would make its reader wait.
#[test]
fn pipes_and_links_are_no_statistics() {
    let dir = tempfile::tempdir().unwrap();
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, dir.path().join("7.0"), FileType::Fifo, mode, 0).unwrap();
    std::os::unix::fs::symlink("/dev/zero", dir.path().join("8.0")).unwrap();
    File::create(dir.path().join("9.0")).unwrap();
    assert!(read_all(dir.path()).is_empty() && take_ended(dir.path()).is_empty());
    assert!(unpublished(dir.path()) >= 1);
}

#[test]
fn variables_of_anything_are_refused_in_one_line() {
    const NAMES: [&str; 11] = [
        "MEMORY",
        "SHARED_MAX",
        "SWAP",
        "KSWAPD",
        "MAPPING",
        "MAP_FILES",
        "MALLOC",
        "LARGE_PAGES",
        "SYSTEM_CALLS",
        "FAULTS",
        "SEAL",
    ];
    const PIECES: [&str; 16] = [
        "ram:",
        "zram:",
        "dir:/",
        "file:",
        "tier:",
        "flaky:",
        "+",
        ";",
        ",",
        "=",
        ":",
        "1G",
        "-1",
        "99999999999999999999",
        "on",
        "\u{0}\n",
    ];
    let mut random = Prng::new(5);
    for _ in 0..20_000 {
        let name = NAMES[random.below(11) as usize];
        let pieces = 0..random.below(7);
        let text: String = pieces.map(|_| PIECES[random.below(16) as usize]).collect();
        let read = Settings::from_vars(|asked| match asked.strip_prefix("HIGHWATER_")? {
            asked if asked == name => Some(text.clone().into()),
            "MEMORY" => Some("8388608".into()),
            _ => None,
        });
        if let Err(what) = read {
            assert_eq!(what.lines().count(), 1, "{name}={text:?}: {what:?}");
        }
    }
}
