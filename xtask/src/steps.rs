//! Steps with a name, a time and an outcome, and the summary at the end.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};

use crate::shell;

/// How a step ended when it did not fail.
pub enum Done {
    /// It ran and found nothing wrong.
    Passed,
    /// It found nothing wrong, but did not do all of this.
    PassedWithout(Vec<String>),
    /// It was not run, and why.
    Skipped(String),
}

impl Done {
    /// Without nothing, it has passed.
    pub fn passed_without(left_out: Vec<String>) -> Done {
        match left_out.is_empty() {
            true => Done::Passed,
            false => Done::PassedWithout(left_out),
        }
    }
}

/// Runs steps, goes on after a failure, and remembers how each ended.
pub struct Steps {
    only: Vec<String>,
    started: Instant,
    ended: Vec<(&'static str, Duration, Result<Done>)>,
}

/// A step under way beside others.
pub struct Beside {
    name: &'static str,
    /// What it prints.
    file: PathBuf,
    ran: JoinHandle<(io::Result<ExitStatus>, Duration)>,
}

impl Beside {
    /// Waits for it, and prints what it printed. Returns how it ended, and how long it took.
    fn end(self) -> (Result<Done>, Duration) {
        let Ok((ran, took)) = self.ran.join() else {
            return (Err(anyhow!("it panicked")), Duration::ZERO);
        };
        eprint!("{}", fs::read_to_string(&self.file).unwrap_or_default());
        let outcome = ran.context("it cannot be started").and_then(|status| {
            ensure!(status.success(), "{status}, see above");
            Ok(Done::Passed)
        });
        (outcome, took)
    }
}

impl Steps {
    /// With words in `only`, steps whose name contains none of them are left out.
    pub fn new(only: &[String]) -> Self {
        Self {
            only: only.to_vec(),
            started: Instant::now(),
            ended: Vec::new(),
        }
    }

    /// Runs one step. A failure is printed at once and told again in the summary.
    pub fn step(&mut self, name: &'static str, run: impl FnOnce() -> Result<Done>) {
        if !self.is_wanted(name) {
            return;
        }
        eprintln!("\n── {name}");
        let start = Instant::now();
        let outcome = run();
        self.note(name, start.elapsed(), outcome);
    }

    /// Starts a step that is one program and runs beside the following steps until [`Steps::end`]. The caller gives it a
    /// low priority, so that it does not slow those down.
    pub fn begin(
        &mut self,
        name: &'static str,
        program: impl FnOnce() -> Result<Command>,
    ) -> Option<Beside> {
        if !self.is_wanted(name) {
            return None;
        }
        eprintln!("\n── {name}, beside the next ones");
        let start = Instant::now();
        match program().and_then(|program| into_file(program, name)) {
            Ok((mut program, file)) => {
                eprintln!("   prints to {}", file.display());
                let ran = thread::spawn(move || (program.status(), start.elapsed()));
                Some(Beside { name, file, ran })
            }
            Err(error) => {
                self.note(name, start.elapsed(), Err(error));
                None
            }
        }
    }

    /// Waits for what was begun.
    pub fn end(&mut self, begun: Option<Beside>) {
        if let Some(begun) = begun {
            let name = begun.name;
            eprintln!("\n── {name}");
            let (outcome, took) = begun.end();
            self.note(name, took, outcome);
        }
    }

    fn is_wanted(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|word| name.contains(word.as_str()))
    }

    fn note(&mut self, name: &'static str, took: Duration, outcome: Result<Done>) {
        match &outcome {
            Ok(Done::Passed) => {}
            Ok(Done::PassedWithout(parts)) => eprintln!("   {}", without(parts)),
            Ok(Done::Skipped(why)) => eprintln!("   skipped: {why}"),
            Err(error) => eprintln!("   failed: {error:#}"),
        }
        self.ended.push((name, took, outcome));
    }

    /// Prints a line per step; true if none failed and at least one ran.
    pub fn summary(&self) -> bool {
        eprintln!();
        for (name, took, outcome) in &self.ended {
            let (word, note) = match outcome {
                Ok(Done::Passed) => ("ok", String::new()),
                Ok(Done::PassedWithout(parts)) => ("ok", without(parts)),
                Ok(Done::Skipped(why)) => ("skipped", why.clone()),
                Err(error) => ("FAILED", format!("{error:#}")),
            };
            eprintln!("{word:8} {:7.1} s  {name:14} {note}", took.as_secs_f64());
        }
        let failed = self
            .ended
            .iter()
            .filter(|(_, _, outcome)| outcome.is_err())
            .count();
        eprintln!(
            "{} steps, {failed} failed, {:.1} s",
            self.ended.len(),
            self.started.elapsed().as_secs_f64()
        );
        failed == 0 && !self.ended.is_empty()
    }
}

/// The command, with all that it prints in a file.
fn into_file(mut program: Command, name: &str) -> Result<(Command, PathBuf)> {
    let path = shell::scratch(&format!("{name}.txt"))?;
    let file = File::create(&path).with_context(|| path.display().to_string())?;
    program.stdout(file.try_clone()?).stderr(file);
    Ok((program, path))
}

fn without(parts: &[String]) -> String {
    format!("{} skipped: {}", parts.len(), parts.join("; "))
}
