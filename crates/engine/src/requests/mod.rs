//! Requests on this node: what is done with one ([`decide`], by its [`age`]), those that wait here as their shard's leader
//! ([`pending`]), and those that another node must execute ([`forwards`]).

pub mod age;
#[cfg(test)]
mod answers_tests;
#[cfg(test)]
mod copies_tests;
pub mod decide;
pub(crate) mod forwards;
mod kicks;
#[cfg(test)]
mod kicks_tests;
pub(crate) mod pending;
#[cfg(test)]
mod refusals_tests;
pub(crate) mod waiter;
pub(crate) mod waiting_reads;
