//! `highwater ctl`: what it shows about the managers of a running session, and what it changes.

use crate::place::Place;
use crate::shares::Session;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// The number of lines of a key that begin as expected, such as one for each process.
fn lines(session: &Session, key: &str, begin: &str) -> usize {
    let text = session.ctl(key).unwrap_or_default();
    text.lines().filter(|line| line.starts_with(begin)).count()
}

fn counter(session: &Session, name: &str) -> u64 {
    let text = session.ctl("vmstat").expect("the session runs");
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    found.expect("it is counted")
}

#[test]
fn ctl_shows_and_changes_the_managers_of_all_processes() {
    let place = Place::new();
    let program = place.compile("shares", "shares", &[]);
    let mut session = Session::start("keys", 24 * MIB, &[&program], &["kill", "2", "16"]);
    session.expect_line("started");
    session.until("three processes swap", |members| {
        members.len() == 3 && lines(&session, "swap", "process ") == 3
    });
    for (key, begin, count) in [
        ("kswapd", "kswapd = 1", 1),
        ("kswapd", "process ", 3),
        ("buddyinfo", "process ", 3),
        ("pressure", "process ", 6),
        ("locks", "", 1),
        ("slabinfo", "# name ", 1),
        ("slabinfo", "large = ", 1),
        ("vmstat", "nr_swap_used ", 1),
    ] {
        let what = format!("{key}: {count} lines begin with '{begin}'");
        session.until(&what, |_| lines(&session, key, begin) >= count);
    }
    let swap = session.ctl("swap").expect("the session runs");
    assert!(swap.starts_with("swap = ") && swap.contains(" of 1 GiB\n"), "{swap}");
    assert!(swap.lines().skip(1).all(|line| line.contains(" zram:1G")), "{swap}");
    for threads in ["3", "1"] {
        let changed = session.ctl(&format!("kswapd={threads}"));
        assert_eq!(changed, Some(format!("kswapd = {threads}\n")));
        let each = format!(" = {threads} kswapd thread");
        session.until("each process has so many threads", |_| {
            let text = session.ctl("kswapd").expect("the session runs");
            text.lines().skip(1).filter(|line| line.contains(&each)).count() == 3
        });
        assert_eq!(lines(&session, "kswapd", &format!("kswapd = {threads}")), 1);
    }
    assert!(session.ctl("kswapd=17").is_none() && session.ctl("locks=1").is_none());
    for (key, usual) in [("swappiness", 60), ("readahead", 16), ("file-readahead", 256)] {
        assert_eq!(session.ctl(key), Some(format!("{key} = {usual}\n")));
    }
    // Without readahead, every page causes its own major fault.
    assert_eq!(session.ctl("swappiness=200"), Some("swappiness = 200\n".to_owned()));
    assert_eq!(session.ctl("readahead=1"), Some("readahead = 1\n".to_owned()));
    assert_eq!(session.ctl("readahead"), Some("readahead = 1\n".to_owned()));
    session.until("no page is read along any more", |_| {
        let read_along = || counter(&session, "swap_ra");
        let before = read_along();
        std::thread::sleep(Duration::from_millis(300));
        before > 0 && read_along() == before
    });
    let line = session.refusal("compact");
    assert!(line.contains("start it with --large-pages on"), "{line}");
    session.finish();
    session.expect_line("ended");
    session.end();
}

#[test]
fn compact_makes_blocks_in_all_processes() {
    let place = Place::new();
    let program = place.compile("shares", "shares", &[]);
    let arguments = ["kill", "2", "16"];
    let options = ["--large-pages", "on"];
    let mut session = Session::with("compact", 96 * MIB, &options, &[&program], &arguments);
    session.expect_line("started");
    session.until("all processes are there", |members| members.len() == 3);
    let line = session.ctl("compact").expect("the session runs");
    assert!(line.starts_with("compact = ") && line.ends_with(" in 3 processes\n"), "{line}");
    session.finish();
    session.expect_line("ended");
    session.end();
}
