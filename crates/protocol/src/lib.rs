//! What goes over the wire.
//!
//! Two families of formats, for two kinds of readers:
//!
//! * clients and operators speak MessagePack or JSON ([`codec`]) in the types of
//!   [`user`], [`admin`], [`event`] and [`error`], on the subjects of [`subject`],
//!   holding [`ticket`]s;
//! * nodes speak protobuf among themselves: [`frame`]s.
//!
//! Whatever comes from outside is refused with an error that names what is wrong;
//! nothing here panics on it. What nodes exchange is authenticated before it is
//! decoded, with keys derived from the cluster's key ([`keys`]).

pub mod admin;
pub mod codec;
mod enter;
pub mod error;
pub mod event;
pub mod frame;
pub mod header;
mod journal;
mod key;
pub mod keys;
pub mod rights;
pub mod servers;
mod settings;
pub mod subject;
pub mod ticket;
pub mod user;
mod wire;

/// What prost makes of `proto/frame.proto`.
#[allow(missing_docs, clippy::all)]
mod pb {
    include!(concat!(env!("OUT_DIR"), "/nowserving.v1.rs"));
}
