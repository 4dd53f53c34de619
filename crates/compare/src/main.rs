//! Measures nowserving beside other products, and as browsers see it, on this machine and in one run. Not a part of the
//! product: the clusters are those of the end-to-end tests.

mod bench;
mod cpu;
mod failover;
mod peers;
mod web;

use std::process::ExitCode;

use clap::Parser;
use tokio::runtime;

/// Measures nowserving beside other products
#[derive(Parser)]
enum Compare {
    Bench(bench::BenchArgs),
    Failover(failover::Plan),
    Profile(bench::ProfileArgs),
    CrowdHttp(web::CrowdHttpArgs),
    #[command(hide = true)]
    Echo(bench::EchoArgs),
}

fn main() -> anyhow::Result<ExitCode> {
    match Compare::parse() {
        Compare::Bench(args) => runtime::Runtime::new()?.block_on(bench::run(args)),
        Compare::Profile(args) => runtime::Runtime::new()?.block_on(bench::profile(args)),
        Compare::CrowdHttp(args) => runtime::Runtime::new()?.block_on(web::run(args)),
        Compare::Failover(plan) => {
            let mut runtime = runtime::Builder::new_current_thread();
            runtime
                .enable_all()
                .build()?
                .block_on(failover::run(plan))?;
            Ok(ExitCode::SUCCESS)
        }
        Compare::Echo(args) => {
            bench::echo(args)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
