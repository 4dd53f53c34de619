#![allow(clippy::unwrap_used)]

mod builds;
mod clocks;
mod copies;
mod disk_room;
mod elections;
mod facts;
mod group;
mod keys;
mod kicks;
mod kv;
mod limits;
mod members;
mod payload;
mod refusals;
mod refused_disks;
mod replay;
mod rig;
mod rules;
mod snapshots;
mod standing;
