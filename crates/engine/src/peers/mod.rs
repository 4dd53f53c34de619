//! The other nodes: whether they accept this one ([`contact`]), what their frames say of them ([`peer`]), and what is sent
//! to them ([`links`]).

pub(crate) mod announced;
pub mod contact;
#[cfg(test)]
mod disk_room_tests;
mod electorates;
pub mod known_disk;
pub(crate) mod links;
#[cfg(test)]
mod payload_tests;
pub(crate) mod peer;
mod refusal;
#[cfg(test)]
mod refused_disks_tests;
#[cfg(test)]
mod standing_tests;
