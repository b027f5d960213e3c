//! The progress line of `highwater-lab reproduce`: what runs, how many runs ended, and about how
//! long the others take.

use highwater_command::{elapsed, say};
use highwater_lab::reproduce::{Event, Experiment, Options, Results};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal, stderr};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Results that say how long the runs of each experiment took once.
const BEFORE: &str = include_str!("../../reproduce/results.json");

/// Runs of experiments, one experiment after the other.
pub(crate) struct Progress {
    bar: ProgressBar,
    began: Instant,
    state: Mutex<State>,
}

/// The runs that ended, and those that are left.
#[derive(Debug)]
struct State {
    experiments: Vec<Runs>,
    what: String,
}

/// The runs of an experiment.
#[derive(Debug)]
struct Runs {
    name: &'static str,
    all: usize,
    ended: usize,
    /// Of those that ended.
    seconds: f64,
    /// Seconds of a run in committed results.
    before: Option<f64>,
}

impl Progress {
    /// A line on a terminal; elsewhere a new line for each run.
    pub(crate) fn start(experiments: &[&'static Experiment], options: Options<'_>) -> Progress {
        let before: Results = serde_json::from_str(BEFORE).expect("a test reads it");
        let runs = |experiment: &&'static Experiment| {
            let outcome = before.experiments.get(experiment.name);
            let each = outcome.map(|one| one.seconds / one.runs.max(1) as f64);
            let all = experiment.runs(options);
            Runs { name: experiment.name, all, ended: 0, seconds: 0.0, before: each }
        };
        let bar =
            if stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
        let template = ProgressStyle::with_template("{spinner} {msg}");
        bar.set_style(template.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        let experiments = experiments.iter().map(runs).collect();
        let state = Mutex::new(State { experiments, what: String::new() });
        Progress { bar, began: Instant::now(), state }
    }

    /// Shows what happened in an experiment.
    pub(crate) fn show(&self, experiment: &Experiment, event: Event<'_>) {
        let mut state = self.state.lock().expect("no panic");
        match event {
            Event::Began { what, tasks } => state.what = format!("{what}, {tasks} tasks"),
            Event::Ended { seconds } => state.ended(experiment.name, seconds),
        }
        let line = state.line(self.began.elapsed());
        if !self.bar.is_hidden() {
            self.bar.set_message(line);
            self.bar.tick();
        } else if matches!(event, Event::Began { .. }) {
            say(line);
        }
    }

    /// Prints something else.
    pub(crate) fn suspend<R>(&self, act: impl FnOnce() -> R) -> R {
        self.bar.suspend(act)
    }
}

impl State {
    fn ended(&mut self, name: &str, seconds: f64) {
        if let Some(runs) = self.experiments.iter_mut().find(|runs| runs.name == name) {
            runs.ended += 1;
            runs.seconds += seconds;
        }
    }

    fn line(&self, passed: Duration) -> String {
        let sum = |of: fn(&Runs) -> usize| self.experiments.iter().map(of).sum::<usize>();
        let (all, ended) = (sum(|runs| runs.all), sum(|runs| runs.ended));
        let left = match self.left(passed.as_secs_f64()) {
            Some(left) => format!("about {} left", elapsed(Duration::from_secs_f64(left))),
            None => "no estimate yet".into(),
        };
        format!("{ended} of {all} runs, {}, {left}: {}", elapsed(passed), self.what)
    }

    /// The estimated seconds for the remaining runs, from the time that runs of their experiment
    /// took here or in committed results, at the degree of parallelism so far. `None` before there
    /// are any data.
    fn left(&self, passed: f64) -> Option<f64> {
        let each = |runs: &Runs| match runs.ended {
            0 => runs.before,
            ended => Some(runs.seconds / ended as f64),
        };
        let left = |runs: &Runs| {
            let count = runs.all.saturating_sub(runs.ended);
            if count == 0 { Some(0.0) } else { each(runs).map(|each| each * count as f64) }
        };
        let seconds: f64 = self.experiments.iter().map(left).sum::<Option<f64>>()?;
        let ended: f64 = self.experiments.iter().map(|runs| runs.seconds).sum();
        let at_once = if passed > 0.0 { (ended / passed).max(1.0) } else { 1.0 };
        Some(seconds / at_once)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(runs: &[(&'static str, usize, Option<f64>)]) -> State {
        let of = |&(name, all, before)| Runs { name, all, ended: 0, seconds: 0.0, before };
        State { experiments: runs.iter().map(of).collect(), what: "a run".into() }
    }

    #[test]
    fn an_estimate_is_of_this_host_as_soon_as_runs_ended() {
        let mut state = state(&[("one", 4, Some(10.0)), ("two", 2, Some(30.0))]);
        assert_eq!(state.left(0.0), Some(100.0));
        state.ended("one", 5.0);
        assert_eq!(state.left(5.0), Some(15.0 + 60.0));
        state.ended("one", 5.0);
        assert_eq!(state.left(5.0), Some((10.0 + 60.0) / 2.0), "two at a time");
        let line = state.line(Duration::from_secs(5));
        assert!(line.starts_with("2 of 6 runs, ") && line.ends_with(" left: a run"), "{line}");
    }

    #[test]
    fn without_anything_to_tell_from_there_is_no_estimate() {
        let mut state = state(&[("one", 2, None)]);
        assert_eq!(state.left(1.0), None);
        state.ended("one", 3.0);
        assert_eq!(state.left(3.0), Some(3.0));
    }
}
