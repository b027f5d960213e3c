//! Figures of runs that ended, kept in a file, so that an interrupted command continues.
//!
//! A line of JSON for each run: a hash of the program, a hash of all that determines the run, its
//! figures. Another build does not use them.

use crate::report::simulation::SimulationFigures;
use crate::simulate::{self, RunError};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Mutex;

/// Runs that ended.
pub struct Kept {
    program: u64,
    found: HashMap<u64, SimulationFigures>,
    file: Mutex<File>,
}

#[derive(Serialize, Deserialize)]
struct Line {
    program: u64,
    run: u64,
    figures: SimulationFigures,
}

impl Kept {
    /// Reads a file, if it exists, and adds to it.
    ///
    /// # Errors
    /// It cannot be read or written.
    pub fn open(path: &Path) -> io::Result<Kept> {
        let program = hash(&std::fs::read(std::env::current_exe()?)?);
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        let text = std::fs::read_to_string(path)?;
        if !text.is_empty() && !text.ends_with('\n') {
            // The command was killed while it wrote this line.
            file.write_all(b"\n")?;
        }
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
        let own = lines.filter(|line| line.program == program);
        let found = own.map(|line| (line.run, line.figures)).collect();
        Ok(Kept { program, found, file: Mutex::new(file) })
    }

    /// The figures of a run: as kept, or of a new simulation.
    pub(super) fn run(
        &self,
        experiment: &simulate::Experiment,
    ) -> Result<SimulationFigures, RunError> {
        let run = hash(&format!("{experiment:?}"));
        if let Some(figures) = self.found.get(&run) {
            return Ok(figures.clone());
        }
        let figures = simulate::run(experiment)?.figures;
        let line = Line { program: self.program, run, figures };
        let text = serde_json::to_string(&line).expect("text keys");
        // Without this line the run is repeated later, and nothing else is lost.
        let _ = self.file.lock().expect("no panic").write_all(format!("{text}\n").as_bytes());
        Ok(line.figures)
    }
}

fn hash(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}
