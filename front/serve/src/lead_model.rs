//! Leaders and followers in all interleavings: no message stays unread while another waits for a
//! device, and a server that stops ends all its threads (loom reports a deadlock otherwise).

use crate::lead::{Counts, Handover, Lead, Monitor, Next, Turn};
use highwater_model::{Condvar, JoinHandle, Mutex, MutexGuard, check, spawn};
use std::rc::Rc;

struct ModelMonitor(Mutex<Counts>, Condvar);

impl Monitor for ModelMonitor {
    type Guard<'a> = MutexGuard<'a, Counts>;

    fn new(counts: Counts) -> ModelMonitor {
        ModelMonitor(Mutex::new(counts), Condvar::new())
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap()
    }

    fn wait<'a>(&'a self, guard: MutexGuard<'a, Counts>) -> MutexGuard<'a, Counts> {
        self.1.wait(guard).unwrap()
    }

    fn notify_one(&self) {
        self.1.notify_one();
    }

    fn notify_all(&self) {
        self.1.notify_all();
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Message {
    /// A fault that waits for a device.
    Slow,
    /// A fault on a page that is at hand.
    Fast,
    /// Its reader stops.
    Stop,
}

/// Messages of threads that wait until theirs is served, as userfaultfd has them.
struct Faults {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    unread: Vec<Message>,
    served: Vec<Message>,
}

impl Faults {
    fn new(unread: Vec<Message>) -> Faults {
        let state = State { unread, served: Vec::new() };
        Faults { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn wait_until(&self, is_so: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap();
        while !is_so(&state) {
            state = self.changed.wait(state).unwrap();
        }
        state
    }

    fn read(&self) -> Message {
        self.wait_until(|state| !state.unread.is_empty()).unread.remove(0)
    }

    fn serve(&self, message: Message) {
        self.state.lock().unwrap().served.push(message);
        self.changed.notify_all();
    }

    fn wait_for(&self, message: Message) {
        drop(self.wait_until(|state| state.served.contains(&message)));
    }

    /// A thread that faults, until it is served.
    fn raise(&self, message: Message) {
        let mut state = self.state.lock().unwrap();
        state.served.retain(|served| *served != message);
        state.unread.push(message);
        drop(state);
        self.changed.notify_all();
        self.wait_for(message);
    }
}

struct Server {
    lead: Lead<ModelMonitor>,
    faults: Faults,
    /// A slow fault is served after this one.
    device: Option<Message>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Server {
    fn start(lead: Lead<ModelMonitor>, unread: &[Message], device: Option<Message>) -> Rc<Server> {
        let unread = unread.to_vec();
        let threads = Mutex::new(Vec::new());
        let server = Rc::new(Server { lead, faults: Faults::new(unread), device, threads });
        server.add_threads(server.lead.recruit());
        server
    }

    fn add_threads(self: &Rc<Self>, recruits: usize) {
        for cpu in 0..recruits {
            let server = self.clone();
            let thread = spawn(cpu as u16, move || server.run());
            self.threads.lock().unwrap().push(thread);
        }
    }

    /// A thread of the server, as `handler.rs` has it.
    fn run(self: &Rc<Self>) {
        while self.lead.become_leader() == Next::Lead {
            self.lead.follow(self.read_and_serve());
        }
    }

    fn read_and_serve(self: &Rc<Self>) -> Turn {
        loop {
            let message = self.faults.read();
            let turn = match message {
                Message::Slow => self.hand_over(),
                Message::Fast | Message::Stop => Turn::Leads,
            };
            if let (Turn::HandedOver, Some(other)) = (turn, self.device) {
                self.faults.wait_for(other);
            }
            self.faults.serve(message);
            if turn == Turn::HandedOver || message == Message::Stop {
                return turn;
            }
        }
    }

    fn hand_over(self: &Rc<Self>) -> Turn {
        match self.lead.hand_over() {
            Handover::Done => Turn::HandedOver,
            Handover::Start(recruits) => {
                self.add_threads(recruits);
                Turn::HandedOver
            }
            Handover::Refused => Turn::Leads,
        }
    }

    fn stop(&self) {
        self.lead.stop(|| self.faults.raise(Message::Stop));
        while let Some(thread) = { self.threads.lock().unwrap().pop() } {
            thread.join().unwrap();
        }
    }
}

#[test]
fn a_message_is_read_while_another_waits_for_a_device() {
    check(2, || {
        let unread = [Message::Slow, Message::Fast];
        let server = Server::start(Lead::new(1, 3), &unread, Some(Message::Fast));
        server.faults.wait_for(Message::Slow);
        server.stop();
    });
}

/// Regression: the last leader handed over while the server stopped. No follower led any more, and
/// the message that was to stop the leader was never read.
#[test]
fn a_server_stops_while_a_leader_hands_over() {
    for (wanted, most) in [(1, 1), (1, 3), (2, 3)] {
        check(2, move || Server::start(Lead::new(wanted, most), &[Message::Slow], None).stop());
    }
}
