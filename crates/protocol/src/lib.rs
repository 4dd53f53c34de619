//! What goes over the wire, and onto disk.
//!
//! Two families of formats, for two kinds of readers:
//!
//! * clients and operators speak MessagePack or JSON ([`codec`]) in the types of
//!   [`user`], [`admin`], [`event`] and [`error`], on the subjects of [`subject`],
//!   holding [`ticket`]s;
//! * nodes speak protobuf among themselves and to their disks: [`command`]s in the
//!   log, [`frame`]s on the wire, [`snapshot`]s in files.
//!
//! Whatever comes from outside is refused with an error that names what is wrong;
//! nothing here panics on it. What nodes exchange is authenticated before it is
//! decoded, with keys derived from the cluster's key ([`keys`]).

pub mod admin;
pub mod codec;
pub mod command;
mod command_pb;
mod enter;
pub mod error;
pub mod event;
mod forecast_pb;
pub mod frame;
mod journal;
mod journal_pb;
mod key;
pub mod keys;
pub mod rights;
pub mod servers;
mod settings;
mod settings_pb;
pub mod snapshot;
mod snapshot_pb;
pub mod subject;
pub mod ticket;
pub mod user;
mod walk;
mod wire;

/// What prost makes of `proto/*.proto`.
#[allow(missing_docs, clippy::all)]
mod pb {
    include!(concat!(env!("OUT_DIR"), "/nowserving.v1.rs"));
}
