//! Measures other products beside nowserving, on this machine and in one run. Not a part of the product: the clusters are
//! those of the end-to-end tests, the load and the report those of `nowserving bench`.

mod cpu;
mod failover;
mod limits;
mod peers;

use std::process::ExitCode;

use clap::Parser;

/// Measures other products beside nowserving
#[derive(Parser)]
enum Compare {
    Limits(limits::LimitsArgs),
    Failover(failover::Plan),
}

fn main() -> anyhow::Result<ExitCode> {
    match Compare::parse() {
        Compare::Limits(args) => tokio::runtime::Runtime::new()?.block_on(limits::run(args)),
        Compare::Failover(plan) => {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime
                .enable_all()
                .build()?
                .block_on(failover::run(plan))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
