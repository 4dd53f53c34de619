//! End-to-end tests: real `nowserving node` processes around a real nats-server.
//!
//! This crate is the harness; the tests are in `tests/`, all in one binary, since linking a dozen
//! would take longer than running them. A test is a cluster: it starts one, runs its scenarios
//! against it (side by side where they do not disturb each other) and ends it. Requests are made
//! by hand, as a client without our SDK would make them.
//!
//! `E2E_ONLY=word` runs only the scenarios whose name contains the word. A test that fails prints
//! the ends of the logs and keeps its folder.

mod api;
mod cli;
mod cluster;
mod described;
mod disk;
mod flags;
mod gateway;
pub mod guarded;
pub mod hour;
pub mod http;
mod languages;
pub mod limited;
mod members;
mod metrics;
mod nats;
mod options;
mod process;
mod program;
mod proxy;
mod raw;
mod recovery;
mod resources;
mod scenario;
mod site;
mod skip;
pub mod soak;
mod strace;
mod tap;
mod traffic;
mod wait;

pub use api::{
    Api, CLOCKS_APART_MS, Format, HOUR_MS, NoAnswer, Reply, Route, line_in, number, pointers,
};
pub use cli::{Cli, Output, Running};
pub use cluster::{Cluster, write_key};
pub use described::{Described, Kind};
pub use disk::SmallDisk;
pub use flags::NodeFlags;
pub use gateway::Gateway;
pub use languages::{Language, grpc_python, jwt_program};
pub use members::candidate;
pub use metrics::Metrics;
pub use nats::{Nats, PASSWORD, Streams, inbox_of};
pub use options::Options;
pub use process::{Process, leashed};
pub use program::{build, example, nats_server, program, use_program};
pub use proxy::{Link, Proxy};
pub use raw::RawNats;
pub use recovery::{first_acknowledged, first_written};
pub use resources::allow_open_files;
pub use scenario::{Scenarios, run, under_one_leader};
pub use site::{Site, write_program};
pub use skip::skipped;
pub use strace::{fail_syncs, strace_works};
pub use tap::{Message, Side};
pub use traffic::{Checked, Traffic};
pub use wait::{eventually, free_port};
