//! A forked child has none of its parent's paged memory: calls return an error, an access by a
//! plain pointer ends the child with a line, and dropping everything neither hangs nor disturbs the
//! parent.

use crate::common::{WAYS, alone, builder, lines, memory};
use highwater::{Error, FaultThreads, PagedVec};

/// Forks a child that calls `act`; returns its wait status.
pub(crate) fn child(act: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child calls async-signal-safe functions, and functions of this library that work
    // in a forked child.
    match unsafe { libc::fork() } {
        0 => {
            let status = act();
            // SAFETY: ends the child.
            unsafe { libc::_exit(status) };
        }
        child => {
            let mut status = 0;
            // SAFETY: the child just made.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            status
        }
    }
}

fn refused<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::Forked))
}

#[track_caller]
fn check(name: &str, way: FaultThreads) {
    let output = alone(name, || {
        let memory = memory(way);
        let mut words = PagedVec::<u64>::zeroed(&memory, 4 << 20).expect("room");
        words.iter_mut().enumerate().for_each(|(index, word)| *word = index as u64);
        let mut kept = Some((memory, words));
        let calls = child(|| {
            let (memory, words) = kept.take().expect("copied");
            let right = refused(memory.map(1))
                && refused(memory.statistics())
                && refused(memory.set_budget("5M"))
                && refused(words.read_at(0, &mut [0]));
            drop((memory, words));
            // A child may have memory of its own.
            let own = builder(way).swap("ram:16M").build().expect("userfaultfd");
            let own = PagedVec::from_slice(&own, &vec![5u64; 2 << 20]).expect("room");
            i32::from(!(right && own.iter().all(|word| *word == 5)))
        });
        assert_eq!(calls, 0, "the child's calls are refused");
        let (memory, words) = kept.expect("the parent's");
        let touch = child(|| words[3 << 20] as i32);
        assert_eq!(touch, libc::SIGSEGV, "a signal, after a line");
        assert!(words.iter().enumerate().all(|(index, word)| *word == index as u64));
        assert!(memory.map(1).is_ok());
    });
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?} {stderr}", output.status);
    let lines = lines(&output);
    assert!(lines.len() == 1 && lines[0].contains("forked child"), "{stderr}");
}

#[test]
fn a_child_is_refused_beside_handlers() {
    check("forked::a_child_is_refused_beside_handlers", WAYS[0]);
}

#[test]
fn a_child_is_refused_by_a_thread_that_faults() {
    check("forked::a_child_is_refused_by_a_thread_that_faults", WAYS[1]);
}
