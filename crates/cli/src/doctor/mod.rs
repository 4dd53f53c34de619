//! `nowserving doctor`: why does this line not move?
//!
//! `nowserving_insight` asks and judges; here is what people see of it.

#[cfg(test)]
mod cluster_tests;
#[cfg(test)]
mod line_tests;
mod text;

use std::process::ExitCode;

use clap::Args;
use nowserving_client::{Error, Kind};
use nowserving_insight::diagnosis::diagnosis;
use nowserving_insight::facts;
use nowserving_insight::finding::Severity;

use nowserving_terminal::global::Global;
use nowserving_terminal::output::{Output, REFUSED, UNREACHABLE};

/// Finds out why a line does not move, or what is wrong with the cluster.
///
/// Looks at the leader, the NATS server and this login's rights there, nodes, disks, clocks and releases; with a line
/// also at its phase, seats and their holders, rate, quota, schedule and room. Each finding comes with the commands that mend it,
/// the worst first.
#[derive(Debug, Args)]
#[command(after_help = "\
The exit code is 0 if nothing is broken (a line that an operator has paused is not), 1 for a problem, or if this login
may not ask for all of it, and 3 if the cluster cannot be reached.

Examples:
  nowserving doctor
  nowserving doctor shop-1
  nowserving doctor shop-1 --json | jq -r '.findings[].mend[]?.command // empty'")]
pub struct DoctorArgs {
    /// The line that does not move; without one, the cluster, and all lines in which tokens wait and nobody is admitted.
    pub line: Option<String>,
}

/// Asks, judges, and prints.
pub async fn run(args: DoctorArgs, global: &Global, output: &Output) -> anyhow::Result<ExitCode> {
    let client = match global.connect().await {
        Ok(client) => Ok(client),
        Err(error) => Err(unreachable(error)?),
    };
    let facts = facts::gather(args.line.as_deref(), client).await?;
    let diagnosis = diagnosis(args.line, &facts, &global.asked);
    output.answer(&diagnosis, |it| text::diagnosis(it, output))?;
    let broken = diagnosis
        .findings
        .iter()
        .any(|it| it.severity == Severity::Problem);
    Ok(ExitCode::from(
        match (facts.forbidden.is_empty(), facts.is_empty(), broken) {
            (false, ..) => REFUSED,
            (true, true, _) => UNREACHABLE,
            (true, false, true) => REFUSED,
            (true, false, false) => 0,
        },
    ))
}

/// An error that says why the cluster cannot be asked; wrong usage is passed on.
fn unreachable(error: anyhow::Error) -> anyhow::Result<Error> {
    let error = error.downcast::<Error>()?;
    match error.kind() {
        Kind::BadArgument => Err(error.into()),
        _ => Ok(error),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use nowserving_client::Client;

    use super::*;

    #[tokio::test]
    async fn wrong_usage_is_no_finding() {
        let error = Client::connect("nats://127.0.0.1:1").await.err().unwrap();
        assert!(unreachable(error.into()).is_ok());
        let error = Client::connect("nats://a b").await.err().unwrap();
        assert!(unreachable(error.into()).is_err());
    }
}
