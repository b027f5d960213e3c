//! Threads that read pages before a fault wants them, so that devices have as many reads in flight
//! as they can serve, and not only one for each waiting thread.
//!
//! ```text
//! request.rs, Manager::prefetch -- swap::ReadaheadQueue -- run, a thread of this file
//!   gather: entries held, frames taken -> submit ... done, or enough in flight -> batch.rs
//! in flight  [ oldest | ... | newest ]   of machine/read_batch.rs
//! ```
//! A fault on a page in flight waits for its entry, as for any locked entry.
//!
//! Each thread has its own queue and completes what it submitted. It holds entries while their
//! pages are read, and only tries to lock entries. It waits for devices. For memory it waits only
//! while it holds one run of swapped pages; pages of a file for which no frame is free are not
//! read. Pages that cannot be read stay on the device: the fault that wants them returns the error.

use super::gather::hold;
use super::{batch, file_readahead, request};
use crate::alloc;
use crate::kthread::Kthreads;
use crate::machine::{Machine, ReadBatch, ReadRun};
use crate::space::{Backing, Held};
use crate::swap::{ReadaheadQueue, ReadaheadRequest};
use highwater_platform::{Atomic, Platform};
use highwater_units::FrameList;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;

/// Most batches in flight.
const DEPTH_MAX: usize = 16;

/// Starts the threads of all nodes, if any device gains from readahead. When they end, requests
/// that they have not begun are dropped.
///
/// # Errors
/// The system cannot start a thread.
pub fn start<P: Platform>(machine: &Arc<Machine<P>>) -> io::Result<Option<Kthreads<P>>> {
    let mut devices = machine.swap.devices();
    let files = devices.any(|device| file_readahead::is_on(machine, Some(device.info())));
    if !request::is_on(machine) && !files {
        return Ok(None);
    }
    let mut threads = Kthreads::new(machine, |m| {
        m.readahead.iter().flatten().for_each(ReadaheadQueue::wake);
        #[cfg(feature = "history")]
        m.inflight.close();
    });
    let on = |node: usize| machine.nodes[node].zone.range().node;
    for (node, queues) in machine.readahead.iter().enumerate() {
        for index in 0..queues.len() {
            threads.run("readahead", on(node), move |m, stopped| {
                run(m, &m.readahead[node][index], stopped);
            })?;
        }
    }
    #[cfg(feature = "history")]
    if files && super::history::is_by_reader(machine) {
        machine.inflight.open();
        threads.run("landing", on(0), |m, _| super::history::expire(m))?;
    }
    Ok(Some(threads))
}

/// The body of a thread.
fn run<P: Platform>(m: &Machine<P>, queue: &ReadaheadQueue<P>, stopped: &P::Atomic<u8>) {
    let mut reader = Reader::new(m, queue);
    loop {
        let ticket = queue.ticket();
        if stopped.load(Acquire) != 0 {
            return reader.complete_all();
        }
        match reader.step() {
            Step::Progress => {}
            Step::Idle => queue.wait(ticket),
        }
    }
}

/// The result of a step of the thread.
enum Step {
    /// A batch was submitted or completed.
    Progress,
    /// There is nothing to do.
    Idle,
}

/// A readahead thread's batches in flight, and the request it is serving.
struct Reader<'a, P: Platform> {
    m: &'a Machine<P>,
    queue: &'a ReadaheadQueue<P>,
    /// From the oldest to the newest.
    in_flight: VecDeque<ReadBatch<P>>,
    /// Empty batches. The last one used is reused first, so that no more batches take memory than
    /// are in flight.
    spare: Vec<ReadBatch<P>>,
    /// The rest of the current request.
    request: Option<ReadaheadRequest>,
}

/// Frames for a run of held pages.
enum Frames {
    /// For the first pages of the run.
    Some(FrameList),
    /// None now: submit what was gathered, then retry.
    Retry,
    /// None: skip the pages.
    Skip,
}

/// The most batches in flight, in a memory of `frames` frames.
fn depth(frames: usize) -> usize {
    (frames / 1024).clamp(1, DEPTH_MAX)
}

impl<'a, P: Platform> Reader<'a, P> {
    fn new(m: &'a Machine<P>, queue: &'a ReadaheadQueue<P>) -> Self {
        let (in_flight, spare) = (VecDeque::new(), Vec::new());
        Reader { m, queue, in_flight, spare, request: None }
    }

    fn step(&mut self) -> Step {
        while self.oldest_is_done() {
            self.complete_oldest();
        }
        if self.in_flight.len() < depth(self.m.present())
            && let Some(batch) = self.gather()
        {
            self.submit(batch);
            return Step::Progress;
        }
        if self.in_flight.is_empty() {
            return Step::Idle;
        }
        self.complete_oldest();
        Step::Progress
    }

    fn oldest_is_done(&self) -> bool {
        self.in_flight.front().is_some_and(|batch| batch.is_done(&self.m.platform))
    }

    /// A batch of runs of requested pages; `None`: there are none.
    fn gather(&mut self) -> Option<ReadBatch<P>> {
        let (m, mut pages) = (self.m, 0);
        let mut batch = self.spare.pop().unwrap_or_default();
        while pages < batch.pages_max(&m.swap, m.present()) && batch.has_room() {
            let Some(run) = self.next_run(batch.device()) else { break };
            pages += run.frames.len();
            batch.add(run);
        }
        if batch.runs() > 0 {
            return Some(batch);
        }
        self.spare.push(batch);
        None
    }

    /// The next requested pages that are on the device, with frames for them.
    fn next_run(&mut self, device: Option<u8>) -> Option<ReadRun> {
        let m = self.m;
        loop {
            let request = self.request.take().or_else(|| self.queue.pop())?;
            let Some((held, slots)) = hold(m, &request) else {
                self.request = request.skip(1);
                continue;
            };
            // A batch reads from one device: this run is for the next batch.
            if device.is_some_and(|device| device != slots[0].device) {
                self.request = Some(request);
                return None;
            }
            let frames = match self.frames_for(&held, device) {
                Frames::Some(frames) => frames,
                Frames::Retry => {
                    self.request = Some(request);
                    return None;
                }
                Frames::Skip => continue,
            };
            let mut held = held;
            held.truncate(frames.len());
            self.request = request.skip(frames.len() as u64);
            return Some(ReadRun { left: held.leave(), slots, frames, landing: request.landing });
        }
    }

    /// Allocates frames for the first held pages. Reclaims without a limit only if nothing else is
    /// in flight or gathered, since a reclaimer may wait for those entries, and never for files.
    fn frames_for(&mut self, held: &Held<'a, P>, gathered: Option<u8>) -> Frames {
        let (m, backing) = (self.m, held.space().backing());
        loop {
            let free = match backing {
                Backing::Anonymous => alloc::frames_noretry(m, held.len()),
                Backing::File { .. } => alloc::frames_noreclaim(m, held.len()),
            };
            match (free, self.in_flight.len(), gathered, backing) {
                (Some(frames), ..) => return Frames::Some(frames),
                (None, _, Some(_), _) => return Frames::Retry,
                (None, 0, None, Backing::File { .. }) => return Frames::Skip,
                (None, 0, None, Backing::Anonymous) => {
                    return alloc::frames(m, held.len()).map_or(Frames::Retry, Frames::Some);
                }
                (None, _, None, _) => self.complete_oldest(),
            }
        }
    }

    fn submit(&mut self, mut batch: ReadBatch<P>) {
        batch::submit(self.m, &mut batch);
        self.in_flight.push_back(batch);
    }

    fn complete_all(&mut self) {
        while !self.in_flight.is_empty() {
            self.complete_oldest();
        }
    }

    fn complete_oldest(&mut self) {
        let mut batch = self.in_flight.pop_front().expect("a batch is in flight");
        batch::complete(self.m, &mut batch);
        self.spare.push(batch);
    }
}
