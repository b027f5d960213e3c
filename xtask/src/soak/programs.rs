//! The programs of the soak, and what they print without Highwater.

use crate::tool::Trouble;
use fastrand::Rng;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCES: &str = "front/cli/tests/programs";
/// The text that is sorted and compressed, and the functions that are compiled.
const TEXT_BYTES: usize = 24 << 20;
const FUNCTIONS: usize = 1500;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// storm.c: threads, forks and signals over memory whose contents it knows.
    Storm,
    Sort,
    /// Python objects.
    Objects,
    /// NumPy.
    Arrays,
    Compress,
    Compile,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Storm => "storm",
            Kind::Sort => "sort",
            Kind::Objects => "objects",
            Kind::Arrays => "arrays",
            Kind::Compress => "compress",
            Kind::Compile => "compile",
        }
    }
}

/// A program, its arguments, and about how much memory it needs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Program {
    pub(super) kind: Kind,
    pub(super) arguments: Vec<String>,
    pub(super) mib: u64,
}

impl Program {
    pub(super) fn draw(kind: Kind, random: &mut Rng) -> Program {
        let (arguments, mib) = match kind {
            Kind::Storm => storm(random),
            Kind::Sort => (strings(&["-S", "256M", "--parallel=2", "text"]), 90),
            Kind::Objects => (strings(&["objects.py"]), 45),
            Kind::Arrays => {
                let (part, mib) = (["sort", "reduce", "product"], random.u64(8..=40));
                let part = part[random.usize(..part.len())];
                (vec!["arrays.py".to_owned(), part.to_owned(), mib.to_string()], 40 + 2 * mib)
            }
            // Higher levels look up each byte in tables all over: with a part of them in memory
            // that takes hours.
            Kind::Compress => (strings(&["-q", "--single-thread", "-5", "-c", "text"]), 13),
            Kind::Compile => (strings(&["-O1", "-S", "-o", "-", "functions.c"]), 70),
        };
        Program { kind, arguments, mib }
    }
}

fn storm(random: &mut Rng) -> (Vec<String>, u64) {
    let (seed, mib) = (random.u64(..1 << 32), random.u64(8..=96));
    let (seconds, threads) = (random.u64(2..=12), [1, 2, 4, 8, 24][random.usize(..5)]);
    let arguments = [seed, seconds, threads, mib].map(|number| number.to_string());
    (arguments.to_vec(), mib + 4 * threads)
}

fn strings(parts: &[&str]) -> Vec<String> {
    parts.iter().map(|part| (*part).to_owned()).collect()
}

/// The directory where programs find their inputs, and what they print.
pub(super) struct Inputs {
    dir: PathBuf,
    python: PathBuf,
    expected: HashMap<Vec<String>, Vec<u8>>,
}

impl Inputs {
    /// Writes the inputs, and compiles storm.c.
    pub(super) fn new(dir: PathBuf, repository: &Path) -> Result<Inputs, Trouble> {
        fs::create_dir_all(&dir)?;
        let sources = repository.join(SOURCES);
        for name in ["objects.py", "arrays.py"] {
            fs::copy(sources.join(name), dir.join(name))?;
        }
        fs::write(dir.join("text"), text())?;
        fs::write(dir.join("functions.c"), functions())?;
        let mut compiler = Command::new("cc");
        compiler.args(["-O2", "-g", "-std=gnu11", "-pthread", "-I"]).arg(&sources);
        compiler.arg(sources.join("storm.c")).arg("-o").arg(dir.join("storm"));
        crate::tool::run(&mut compiler)?;
        let python = repository.join(".venv/bin/python");
        let python = python.canonicalize().map(|_| python);
        let python = python.map_err(|_| Trouble("no .venv: run 'make venv'".to_owned()))?;
        Ok(Inputs { dir, python, expected: HashMap::new() })
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The command line of a program.
    pub(super) fn command(&self, program: &Program) -> Vec<String> {
        let path = match program.kind {
            Kind::Storm => self.dir.join("storm"),
            Kind::Objects | Kind::Arrays => self.python.clone(),
            Kind::Sort => PathBuf::from("sort"),
            Kind::Compress => PathBuf::from("zstd"),
            Kind::Compile => PathBuf::from("cc"),
        };
        let mut line = vec![path.to_string_lossy().into_owned()];
        line.extend(program.arguments.iter().cloned());
        line
    }

    /// What a program prints without Highwater. It runs once, but for storms, which print a line.
    pub(super) fn expected(&mut self, program: &Program) -> Result<&[u8], Trouble> {
        let line = self.command(program);
        if !self.expected.contains_key(&line) {
            let output = match program.kind {
                Kind::Storm => b"all contents were right\n".to_vec(),
                _ => {
                    let mut command = Command::new(&line[0]);
                    command.args(&line[1..]).env("LC_ALL", "C").current_dir(&self.dir);
                    crate::tool::output(&mut command)?
                }
            };
            self.expected.insert(line.clone(), output);
        }
        Ok(&self.expected[&line])
    }
}

/// Lines of random words.
fn text() -> String {
    let (mut random, mut text) = (Rng::with_seed(1), String::new());
    while text.len() < TEXT_BYTES {
        let _ = writeln!(text, "{:x} {}", random.u64(..1 << 40), random.u32(..1000));
    }
    text
}

/// C functions with loops and switches.
fn functions() -> String {
    let (mut random, mut text) = (Rng::with_seed(2), String::new());
    for i in 0..FUNCTIONS {
        let (a, b, c) = (random.u32(1..99), random.u32(1..99), random.u32(1..9));
        let _ = writeln!(
            text,
            "int f{i}(int x, int *at) {{ for (int i = 0; i < {a}; i++) {{ at[i] += x * {b}; \
             switch (x % 4) {{ case 0: x += at[i + {c}]; break; case 1: x ^= {a}; break; \
             case 2: at[x & 63] = i; break; default: x = x / 3 + {c}; }} }} return x; }}"
        );
    }
    text
}
