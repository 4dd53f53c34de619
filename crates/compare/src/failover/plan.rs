//! The command line.

use clap::{Args, ValueEnum};
use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// kill -9
    Death,
    /// SIGSTOP
    Stop,
    /// The node's connections pass nothing on and stay open; of our own nodes alone
    CutOff,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    Idle,
    /// Clients that enter and poll without a pause; of our own nodes alone
    Loaded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lowercase")]
pub enum System {
    Nowserving,
    Etcd,
    JetStream,
}

/// Measures how long a cluster acknowledges no write when its leader fails
#[derive(Debug, Args)]
pub struct Plan {
    /// Failures of each kind
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub runs: u32,
    /// One line of JSON instead of the table
    #[arg(long)]
    pub json: bool,
    /// The loops of each node
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=8))]
    pub loops: u32,
    /// Nodes also have direct links; with the faults death and stop
    #[arg(long)]
    pub direct_links: bool,
    #[arg(long = "fault", value_name = "FAULT", value_delimiter = ',', default_values = ["death", "stop", "cut-off"])]
    pub faults: Vec<Fault>,
    #[arg(long = "load", value_name = "LOAD", value_delimiter = ',', default_values = ["idle", "loaded"])]
    pub loads: Vec<Load>,
    #[arg(long = "system", value_name = "SYSTEM", value_delimiter = ',', default_values = ["nowserving"])]
    pub systems: Vec<System>,
}

/// The name of a value on the command line.
pub fn name(value: impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}
