//! Steps with a name, a time and an outcome, and the summary at the end.

use std::time::{Duration, Instant};

use anyhow::Result;

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
    ended: Vec<(&'static str, Duration, Result<Done>)>,
}

impl Steps {
    /// With words in `only`, steps whose name contains none of them are left out.
    pub fn new(only: &[String]) -> Self {
        Self {
            only: only.to_vec(),
            ended: Vec::new(),
        }
    }

    /// Runs one step. A failure is printed at once and told again in the summary.
    pub fn step(&mut self, name: &'static str, run: impl FnOnce() -> Result<Done>) {
        if !self.only.is_empty() && !self.only.iter().any(|word| name.contains(word.as_str())) {
            return;
        }
        eprintln!("\n── {name}");
        let start = Instant::now();
        let outcome = run();
        match &outcome {
            Ok(Done::Passed) => {}
            Ok(Done::PassedWithout(parts)) => eprintln!("   {}", without(parts)),
            Ok(Done::Skipped(why)) => eprintln!("   skipped: {why}"),
            Err(error) => eprintln!("   failed: {error:#}"),
        }
        self.ended.push((name, start.elapsed(), outcome));
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
        let total: Duration = self.ended.iter().map(|(_, took, _)| *took).sum();
        eprintln!(
            "{} steps, {failed} failed, {:.1} s",
            self.ended.len(),
            total.as_secs_f64()
        );
        failed == 0 && !self.ended.is_empty()
    }
}

fn without(parts: &[String]) -> String {
    format!("{} skipped: {}", parts.len(), parts.join("; "))
}
