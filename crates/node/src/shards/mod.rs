//! The engine, its loop, and the threads that do disk work for it. They read the clock, wait and write; the
//! [`Engine`](nowserving_engine::Engine) decides.

pub mod engine_loop;
pub mod outputs;
pub mod persist;
pub mod recover;
pub mod snapshots;
pub mod to_engine;
pub mod transfers;
pub mod turn;
pub mod worker;
