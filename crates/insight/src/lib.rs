//! What an operator wants to know of a cluster, without a screen: `nowserving top`, `nowserving doctor` and the gateway's
//! dashboard show it.
//!
//! [`fetch`] asks for all lines as a screen needs them, [`lines`] keeps them, [`pace`] says how fast they move. [`facts`]
//! asks for all that [`diagnosis`] judges, by [`cluster`] and [`line`]: these are pure, facts in, findings out.

pub mod cluster;
pub mod diagnosis;
pub mod facts;
pub mod fetch;
pub mod finding;
pub mod line;
pub mod lines;
pub mod next_key;
pub mod pace;
pub mod pages;
pub mod same_cluster;
pub mod settings;
pub mod words;
